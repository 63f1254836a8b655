#!/usr/bin/env bash
# Runs the composed stack: deploy.sh up | upgrade | rollback | down | status | compose ARGUMENTS
# PROFILES picks what runs beside redis, web, sender and sweeper: "gpu" or "cpu", and demo, monitoring
# (default: gpu where an NVIDIA driver is found, else cpu). Settings come from .env beside the Makefile;
# the demo makes its own. DEPLOY_* (ports, folders; see docker-compose.yml) may stand in .env or here.
# An upgrade keeps the queue and the volumes: new images are built while the old ones serve, each process
# is given time to end what it has begun, and the previous images and settings are kept for `rollback`.
set -euo pipefail
cd "$(dirname "$0")/.."
state=${HUTONG_DEPLOY_STATE:-var/deploy}
profiles=${PROFILES:-$(nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)}
default_env=.env
[[ " $profiles " == *" demo "* ]] && default_env=$state/demo.env
export HUTONG_ENV_FILE
HUTONG_ENV_FILE=$(realpath -m "${HUTONG_ENV_FILE:-$default_env}")
env_file=$HUTONG_ENV_FILE
build_kind=cpu worker=cpu-worker
[[ " $profiles " == *" gpu "* ]] && build_kind=cuda worker=gpu-worker
started=$SECONDS
say() { echo "[$((SECONDS - started))s] $*"; }
stop() { echo "$*" >&2; exit 1; }

compose() {
    local arguments=(--env-file "$env_file" -f deploy/docker-compose.yml) profile
    for profile in $profiles; do arguments+=(--profile "$profile"); done
    docker compose "${arguments[@]}" "$@"
}

random() { head -c 96 /dev/urandom | base64 -w0 | tr -dc A-Za-z0-9 | head -c "$1"; }

demo_settings() {
    cat <<END
# Written by deploy.sh for the demo: a simulated WeCom, secrets of this machine's own.
WECOM_API_BASE=http://simulator:8090
WECOM_CORP_ID=wwhutongdemo
WECOM_AGENT_ID=1000002
WECOM_CORP_SECRET=$(random 43)
WECOM_TOKEN=$(random 24)
WECOM_ENCODING_AES_KEY=$(random 42)A
ADMIN_TOKEN=$(random 32)
METRICS_TOKEN=$(random 32)
HUTONG_TODAY=2024-11-15
END
}

needs() {
    command -v docker >/dev/null || stop "没有找到 docker；请先安装 Docker Engine 和 compose 插件。"
    docker compose version >/dev/null 2>&1 || stop "docker 没有 compose 插件（v2）；请安装 docker-compose-plugin。"
    docker info >/dev/null 2>&1 || stop "Docker 引擎没有运行，或者当前用户无权使用它。"
    mkdir -p "$state"
    if [ ! -f "$env_file" ] && [[ " $profiles " == *" demo "* ]]; then
        (umask 077 && demo_settings >"$env_file")
    fi
    [ -f "$env_file" ] || stop "没有 $env_file：请 cp deploy/.env.example $env_file 并填好 WECOM_* 和 ADMIN_TOKEN。"
}

use() { export HUTONG_GATEWAY_IMAGE=$1 HUTONG_ENGINE_IMAGE=$2; }

# What runs now, for commands that change no image.
use_current() {
    [ -f "$state/current" ] || return 0
    mapfile -t images <"$state/current"
    use "${images[@]}"
}

build() {
    say "building $HUTONG_GATEWAY_IMAGE and $HUTONG_ENGINE_IMAGE"
    compose build --quiet web "$worker"
}

start() {
    [[ " $profiles " == *" demo "* ]] && compose run --rm --no-deps demo-data
    local up=(up -d --wait --wait-timeout 300 --no-build) service
    # compose stops everything it replaces before it starts anything: one web first, then the other.
    # With --no-deps it would take them for changed once more below, and stop both at once.
    if [ -n "$(compose ps -q web)" ]; then
        for service in web web2; do compose "${up[@]}" "$service"; done
    fi
    compose "${up[@]}" --remove-orphans
}

remember() {
    if [ -f "$state/current" ]; then
        cp "$state/current" "$state/previous"
        cp -p "$state/current.env" "$state/previous.env"
    fi
    printf '%s\n%s\n' "$HUTONG_GATEWAY_IMAGE" "$HUTONG_ENGINE_IMAGE" >"$state/current"
    install -m 600 "$env_file" "$state/current.env"
}

# A tag names what was built, so that a rollback finds it again.
tag() {
    local name
    name=$(git describe --always --dirty --abbrev=10 2>/dev/null || echo unversioned)
    case $name in *-dirty | unversioned) name+=-$(date +%Y%m%d%H%M%S) ;; esac
    echo "$name"
}

case ${1:-} in
up | upgrade)
    needs
    new=${HUTONG_TAG:-$(tag)}
    use "hutong-gateway:$new" "hutong-engine:$build_kind-$new"
    build
    say "starting; what has begun is ended first, messages wait in Redis"
    touch "$state/unfinished"
    start
    remember
    rm "$state/unfinished"
    say "running: $HUTONG_GATEWAY_IMAGE, $HUTONG_ENGINE_IMAGE"
    ;;
rollback)
    needs
    # After an upgrade that did not come up, the version before it is still the current one.
    good=previous
    [ -f "$state/unfinished" ] && good=current
    [ -f "$state/$good" ] || stop "没有可以退回的版本：$state/$good 不存在（升级过一次以后才有）。"
    mapfile -t images <"$state/$good"
    for image in "${images[@]}"; do
        docker image inspect "$image" >/dev/null 2>&1 || stop "旧镜像 $image 已经不在了；现在的版本没有动。"
    done
    say "back to ${images[*]}"
    use "${images[@]}"
    install -m 600 "$env_file" "$state/replaced.env"
    install -m 600 "$state/$good.env" "$env_file"
    start
    if [ "$good" = previous ]; then
        mv "$state/previous" "$state/current"
        mv "$state/previous.env" "$state/current.env"
    fi
    rm -f "$state/unfinished"
    say "running: ${images[*]}; queue, memory and outbox were kept, the settings before are in $state/replaced.env"
    ;;
down)
    needs
    use_current
    compose down
    say "stopped; the volumes (queue, memory, database) are kept"
    ;;
status)
    needs
    use_current
    compose ps
    ;;
compose)
    needs
    use_current
    compose "${@:2}"
    ;;
*)
    stop "deploy.sh up | upgrade | rollback | down | status | compose ARGUMENTS"
    ;;
esac
