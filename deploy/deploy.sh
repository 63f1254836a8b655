#!/usr/bin/env bash
# Runs the composed stack: deploy.sh up | upgrade | rollback | down | status
# PROFILES picks what runs beside redis, web, sender and sweeper: "gpu" or "cpu", and demo, monitoring
# (default: gpu where an NVIDIA driver is found, else cpu). Settings come from .env beside the Makefile.
# An upgrade keeps the queue and the volumes: new images are built while the old ones serve, each process
# is given time to end what it has begun, and the previous images and settings are kept for `rollback`.
set -euo pipefail
cd "$(dirname "$0")/.."
state=${HUTONG_DEPLOY_STATE:-var/deploy}
export HUTONG_ENV_FILE
HUTONG_ENV_FILE=$(realpath -m "${HUTONG_ENV_FILE:-.env}")
env_file=$HUTONG_ENV_FILE
profiles=${PROFILES:-$(nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)}
images=(gateway engine)
started=$SECONDS
say() { echo "[$((SECONDS - started))s] $*"; }
stop() { echo "$*" >&2; exit 1; }

compose() {
    local arguments=(--env-file "$env_file" -f deploy/docker-compose.yml) profile
    for profile in $profiles; do arguments+=(--profile "$profile"); done
    docker compose "${arguments[@]}" "$@"
}

needs() {
    command -v docker >/dev/null || stop "没有找到 docker；请先安装 Docker Engine 和 compose 插件。"
    docker compose version >/dev/null 2>&1 || stop "docker 没有 compose 插件（v2）；请安装 docker-compose-plugin。"
    docker info >/dev/null 2>&1 || stop "Docker 引擎没有运行，或者当前用户无权使用它。"
    [ -f "$env_file" ] || stop "没有 $env_file：请 cp deploy/.env.example $env_file 并填好 WECOM_* 和 ADMIN_TOKEN。"
    local build=cuda; [[ " $profiles " == *" gpu "* ]] || build=cpu
    mkdir -p "$state"
    # A tag names what was built, so that a rollback finds it again.
    new_gateway=hutong-gateway:$1 new_engine=hutong-engine:$build-$1
}

use() { export HUTONG_GATEWAY_IMAGE=$1 HUTONG_ENGINE_IMAGE=$2; }

build() {
    use "$new_gateway" "$new_engine"
    local worker=cpu-worker; [[ " $profiles " == *" gpu "* ]] && worker=gpu-worker
    say "building $new_gateway and $new_engine"
    compose build --quiet web "$worker"
}

start() {
    [[ " $profiles " == *" demo "* ]] && compose run --rm --no-deps demo-data
    compose up -d --wait --wait-timeout 300 --remove-orphans --no-build
}

remember() {
    if [ -f "$state/current" ]; then
        cp "$state/current" "$state/previous"
        cp "$state/current.env" "$state/previous.env"
    fi
    printf '%s\n%s\n' "$HUTONG_GATEWAY_IMAGE" "$HUTONG_ENGINE_IMAGE" >"$state/current"
    install -m 600 "$env_file" "$state/current.env"
}

tag() { git describe --always --dirty --abbrev=10 2>/dev/null || date +%Y%m%d%H%M%S; }

case ${1:-} in
up | upgrade)
    needs "${HUTONG_TAG:-$(tag)}"
    build
    [ "$1" = upgrade ] && say "replacing the processes one after another; messages wait in Redis"
    start
    remember
    say "running: $HUTONG_GATEWAY_IMAGE, $HUTONG_ENGINE_IMAGE"
    ;;
rollback)
    needs none
    [ -f "$state/previous" ] || stop "没有可以退回的版本：$state/previous 不存在（只升级过一次以后才有）。"
    mapfile -t images <"$state/previous"
    for image in "${images[@]}"; do
        docker image inspect "$image" >/dev/null 2>&1 || stop "旧镜像 $image 已经不在了；现在的版本没有动。"
    done
    say "back to ${images[*]}"
    use "${images[@]}"
    install -m 600 "$state/previous.env" "$env_file"
    start
    cp "$state/previous" "$state/current" && cp "$state/previous.env" "$state/current.env"
    rm "$state/previous" "$state/previous.env"
    say "running: ${images[*]}; queue, memory and outbox were kept"
    ;;
down)
    needs none
    compose down
    say "stopped; the volumes (queue, memory, database) are kept"
    ;;
status)
    needs none
    compose ps
    ;;
*)
    stop "deploy.sh up | upgrade | rollback | down | status"
    ;;
esac
