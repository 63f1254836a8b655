"""What the engine says of its GPU, its link and its model, in our words, and whether it fits here.

Owns the reading of ``python -m inference doctor --json``, which runs in a process of its own: the
gateway imports no engine. The model is looked at, not loaded, so a running one is not disturbed.
"""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

from app.doctor.findings import Finding, fail, ok, skip, warn
from app.doctor.host_checks import available_bytes
from app.doctor.programs import NoAnswerError, last_json
from app.doctor.store_checks import live
from app.settings import Settings
from app.store.presence import ProcessReport

TIMEOUT_S = 300.0
"""Checksums read every byte of the model: 20 GB take two minutes on a hard disk."""
LEAST_CAPABILITY = (7, 5)
_REMEDY_SETTINGS = (
    "gpu_memory_limit",
    "backbone_dtype",
    "lm_head_dtype",
    "kv_cache_dtype",
    "max_num_seqs",
    "max_model_len",
)
_MIB = 2**20


def check(settings: Settings) -> list[Finding]:
    """Packages, GPU, memory, link, model; one line where there is no engine."""
    if importlib.util.find_spec("torch") is None:
        return [skip("engine", "这里没有装引擎（网关镜像）：在模型进程的容器里运行同样的命令看它")]
    try:
        record = last_json(*_arguments(settings), timeout_s=TIMEOUT_S)
    except TimeoutError:
        remedy = "看是不是内存不够在换页；单独运行 python -m inference doctor 看停在哪一步"
        return [fail("engine", f"引擎自检超过 {TIMEOUT_S:.0f} 秒没有结束", remedy)]
    except NoAnswerError:
        remedy = "运行 python -m inference doctor 看它的报错；多半是依赖没装好，make setup 重装"
        return [fail("engine", "引擎自检没有给出结果", remedy)]
    here = [report for report in live(settings) if report.host == socket.gethostname()]
    findings = [_packages(record["versions"])]
    if record["gpu"] is not None:
        findings += _gpu(record["gpu"], settings, here)
    if record["link"] is not None:
        findings.append(_link(record["link"], record["model"]))
    if record["model"] is not None:
        findings += _model(record["model"])
        if "error" not in record["model"]:
            findings.append(_host_memory(record["model"], record["gpu"] or {}, here))
    return findings


def _arguments(settings: Settings) -> list[str]:
    options = {
        "--device": settings.device,
        "--gpu-memory-limit": settings.gpu_memory_limit,
        "--max-model-len": settings.max_model_len,
        "--max-num-seqs": settings.max_num_seqs,
        "--backbone-dtype": settings.backbone_dtype,
        "--lm-head-dtype": settings.lm_head_dtype,
        "--kv-cache-dtype": settings.kv_cache_dtype,
    }
    command = ["inference", "doctor", str(settings.model_dir), "--no-load", "--json"]
    return [*command, *(str(word) for option in options.items() for word in option)]


def _packages(versions: dict[str, str | None]) -> Finding:
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        remedy = "在项目目录运行 make setup（容器：重新构建镜像）"
        return fail("engine", f"引擎缺少 {'、'.join(missing)}", remedy)
    return ok("engine", "引擎：" + "，".join(f"{name} {is_}" for name, is_ in versions.items()))


def _gpu(gpu: dict[str, Any], settings: Settings, here: list[ProcessReport]) -> list[Finding]:
    if settings.device == "cpu":
        return [skip("gpu", "HUTONG_DEVICE=cpu：模型在处理器上运行，没有看 GPU")]
    if "error" in gpu:
        if gpu["cuda"] is None:
            remedy = "在有 GPU 的机器上重新 make setup；容器用 PROFILES=gpu make deploy"
            return [fail("gpu", "装的 PyTorch 只能用处理器", remedy)]
        remedy = (
            "主机上先试 nvidia-smi；容器里看不到就装 nvidia-container-toolkit（docs/operations.md）"
        )
        return [fail("gpu", f"看不到 GPU（PyTorch 是 CUDA {gpu['cuda']} 的）", remedy)]
    fact = f"{gpu['name']}，计算能力 {gpu['compute_capability']}，驱动 {gpu['driver'] or '不详'}"
    if tuple(map(int, gpu["compute_capability"].split("."))) < LEAST_CAPABILITY:
        return [fail("gpu", fact, "要 sm_75（GTX 16、RTX 20）或更新的显卡")]
    return [ok("gpu", fact), _gpu_memory(gpu, settings.gpu_memory_limit, here)]


def _gpu_memory(gpu: dict[str, Any], limit: int, here: list[ProcessReport]) -> Finding:
    total, free = gpu["memory_bytes"], gpu["free_bytes"]
    fact = f"显存 {_mib(total)}，上限 HUTONG_GPU_MEMORY_LIMIT {_mib(limit)}"
    if total < limit:
        return fail("gpu_memory", fact, f"把 HUTONG_GPU_MEMORY_LIMIT 设为小于 {total // _MIB}MiB")
    if free is None:
        return ok("gpu_memory", fact)
    fact += f"，空闲 {_mib(free)}"
    ours = sum(int(report.facts.get("gpu_memory_bytes") or 0) for report in here)
    if ours:
        fact += f"（这里的模型进程占着 {_mib(ours)}）"
    if free + ours < limit:
        remedy = "用 nvidia-smi 找到占着显存的程序，停掉它；或者调小 HUTONG_GPU_MEMORY_LIMIT"
        return fail("gpu_memory", fact, remedy)
    return ok("gpu_memory", fact)


def _link(link: dict[str, Any], model: dict[str, Any] | None) -> Finding:
    if "error" in link:
        return skip("pcie", f"没有量 PCIe：{link['error']}")
    pcie = link["pcie"]
    now = f"PCIe {pcie['generation']}.0 x{pcie['width']}" if pcie["width"] else "PCIe（代数不详）"
    fact = f"{now}，有负载时实测 {link['link_gb_s']:.1f} GB/s{_effect(link, model)}"
    most = f"PCIe {pcie['max_generation']}.0 x{pcie['max_width']}"
    if pcie["generation"] < pcie["max_generation"] or pcie["width"] < pcie["max_width"]:
        remedy = f"这张卡和主板能到 {most}：换到直连处理器的 x16 插槽，去掉延长线，看 BIOS 的设置"
        return warn("pcie", fact, remedy)
    return ok("pcie", fact)


def _effect(link: dict[str, Any], model: dict[str, Any] | None) -> str:
    """What the link means for the speed, when all experts are chosen alike."""
    if model is None or "error" in model:
        return ""
    missed = model["token_bytes"] * (1 - model["resident_share"])
    if not missed:
        return "；全部专家都在显存里，回答的速度不靠它"
    most = link["link_gb_s"] * 1e9 / missed
    return f"；专家选得平均时每个 token 取 {missed / 1e6:.1f} MB，最快 {most:.0f} token/秒"


def _model(model: dict[str, Any]) -> list[Finding]:
    if model.get("remedies"):
        values = {name: model["remedies"].get(name) for name in _REMEDY_SETTINGS}
        choices = [f"HUTONG_{name.upper()}={_value(is_)}" for name, is_ in values.items() if is_]
        remedy = f"改其中一个：{'、'.join(choices)}"
        return [fail("memory_plan", f"显存放不下：{model['error']}", remedy)]
    if "error" in model:
        remedy = (
            "检查 HUTONG_MODEL_DIR；重新复制这个文件，或者重新转换模型；"
            "是有意改过它，就用 sha256sum 重写 SHA256SUMS"
        )
        return [fail("model", f"模型不能用：{model['file']}（{model['error']}）", remedy)]
    findings = [_files(model)]
    if "memory_plan" in model:
        plan = model["memory_plan"]
        fact = (
            f"显存计划：骨干 {_mib(plan['backbone_bytes'])}，KV {_mib(plan['kv_bytes'])}，"
            f"专家 {_mib(plan['slot_bytes'])}（放得下 {model['resident_share']:.0%}）；"
            f"锁定主机内存 {_mib(plan['pinned_bytes'])}"
        )
        findings.append(ok("memory_plan", fact))
    return findings


def _files(model: dict[str, Any]) -> Finding:
    fact = (
        f"模型 {model['path']}：{model['routed_layers']} 层 × {model['num_experts']} 个专家，"
        f"{_mib(model['file_bytes'])}"
    )
    if model["checked_files"] is None:
        remedy = (
            "目录里没有 SHA256SUMS：重新转换模型就有；或者在文件确实完好的机器上，在模型目录里运行 "
            "sha256sum model.safetensors experts/* *.json *.jinja > SHA256SUMS，一起复制过来"
        )
        return warn("model", f"{fact}；长度都对，内容无从核对", remedy)
    return ok("model", f"{fact}；{model['checked_files']} 个文件的 SHA-256 都对")


def _host_memory(model: dict[str, Any], gpu: dict[str, Any], here: list[ProcessReport]) -> Finding:
    """Whether the experts find room outside the GPU; a process that runs here has it already."""
    plan = model.get("memory_plan")
    needed = plan["pinned_bytes"] if plan else model["file_bytes"]
    fact = f"模型要{'锁定' if plan else ''}主机内存 {_mib(needed)}"
    if any(report.role == "turns" for report in here):
        return ok("model_memory", f"{fact}，这里的模型进程已经拿到了")
    lock = gpu.get("memlock_bytes") if plan else None
    if lock is not None and lock < needed:
        remedy = "ulimit -l unlimited；compose 里 ulimits.memlock 设为 -1；systemd 里 LimitMEMLOCK"
        return fail("model_memory", f"{fact}，这里最多只能锁定 {_mib(lock)}（memlock）", remedy)
    available = available_bytes()
    if available is None:
        return ok("model_memory", fact)
    fact += f"，可用 {_mib(available)}"
    if available < needed:
        remedy = "停掉占内存的程序，或者加内存；也可以换小一点的模型（HUTONG_MODEL_DIR）"
        return fail("model_memory", fact, remedy)
    return ok("model_memory", fact)


def _value(value: int | str) -> str:
    """As a setting: large numbers are bytes."""
    return f"{value // _MIB}MiB" if isinstance(value, int) and value >= _MIB else str(value)


def _mib(size: float) -> str:
    return f"{size / _MIB:,.0f} MiB"
