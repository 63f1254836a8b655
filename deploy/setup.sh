#!/usr/bin/env bash
# Makes .venv and installs a requirements file into it, with the torch build that fits the machine.
#   deploy/setup.sh requirements.txt
# PYTHON picks the interpreter (3.11-3.13); TORCH_BUILD=cuda|cpu the build of torch where looking for
# a driver says nothing (images); TORCH_CPU_INDEX and TORCH_CUDA_INDEX the index of torch's builds.
# Run again, it puts right what is missing, and replaces a CPU build on a machine that got a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=${1:-requirements.txt}
started=$SECONDS
say() { echo "[setup $((SECONDS - started))s] $*"; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11, 3.12 or 3.13 is needed and none was found; install one or set PYTHON=..." >&2
    return 1
}

wants_cuda() {
    case ${TORCH_BUILD:-} in
        cuda) return 0 ;;
        cpu) return 1 ;;
        "") [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1 ;;
        *) echo "TORCH_BUILD is cuda or cpu, not ${TORCH_BUILD}" >&2; exit 2 ;;
    esac
}

# Such as "2.13.0 cuda" or "2.13.0 cpu"; empty without torch.
installed_torch() {
    .venv/bin/python -c 'import torch
print(torch.__version__.split("+")[0], "cuda" if torch.version.cuda else "cpu")' 2>/dev/null || true
}

install_torch() {
    local pin found
    pin=$(grep '^torch==' requirements.txt)
    found=$(installed_torch)
    if [ "$found" = "${pin#torch==} cuda" ] || { [ "$found" = "${pin#torch==} cpu" ] && ! wants_cuda; }; then
        say "torch is already there"
    elif [ "$(uname -s)" != Linux ]; then
        say "installing $pin (default build)"
        .venv/bin/pip install --quiet "$pin"
    elif wants_cuda; then
        say "installing $pin with CUDA (several GB, some minutes)"
        .venv/bin/pip uninstall --quiet --yes torch 2>/dev/null  # pip takes a CPU build for the same
        .venv/bin/pip install --quiet "$pin" ${TORCH_CUDA_INDEX:+--index-url "$TORCH_CUDA_INDEX"}
        [[ $(installed_torch) == *" cuda" ]] || {
            echo "The package index gave a build of $pin without CUDA. Set TORCH_CUDA_INDEX to one that has it," >&2
            echo "such as https://download.pytorch.org/whl/cu130 or a mirror of it, and run this again." >&2
            return 1
        }
    elif offered_build "$pin" | grep -q '+cpu'; then
        say "no GPU asked for or found: installing $pin, CPU build"
        .venv/bin/pip install --quiet "$pin"
    else
        say "no GPU asked for or found: installing $pin, CPU build from PyTorch's own index"
        .venv/bin/pip install --quiet "$pin" --index-url "${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}" || {
            echo "The CPU build of $pin could not be fetched. Set TORCH_CPU_INDEX to a mirror that has it," >&2
            echo "or run: .venv/bin/pip install $pin   (the CUDA build, several GB; works without a GPU too)" >&2
            return 1
        }
    fi
}

# The build pip would take as it is configured here, without downloading it.
offered_build() {
    .venv/bin/pip install --dry-run --ignore-installed --no-deps --quiet --report - "$1" 2>/dev/null |
        .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' || true
}

if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
install_torch
say "installing $requirements"
.venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
if wants_cuda; then
    say "installing requirements-gpu.txt"
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements-gpu.txt
fi
say "done"
