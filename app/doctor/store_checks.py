"""Is Redis there and set up to lose nothing, do all processes live, does the queue move?

Owns what is read from Redis. Knows nothing of WeCom's API or of the engine.
"""

from __future__ import annotations

import time

import redis

from app.doctor.findings import Finding, fail, ok, warn
from app.settings import Settings
from app.store.gate import Gate, oldest_waiting_s
from app.store.presence import ProcessReport, reports
from app.store.server import connect

SLOW_REDIS_MS = 5.0
LATE_S = 60.0
LARGE_GROWTH = 1.5
_PINGS = 20


def check(settings: Settings) -> list[Finding]:
    """All that Redis tells."""
    if not settings.redis_url:
        return [fail("redis", "没有设置 REDIS_URL", "在 .env 里设置 REDIS_URL=redis://主机:6379/0")]
    try:
        with connect(settings.redis_url, timeout_s=3.0) as client:
            return [
                _latency(client),
                *_durability(client),
                *_processes(client),
                _queue(client),
                *_alerts(client, settings),
            ]
    except redis.AuthenticationError:
        return [fail("redis", "Redis 拒绝了密码", "检查 REDIS_URL 里的用户名和密码")]
    except redis.RedisError as error:
        return [
            fail(
                "redis",
                f"Redis 没有回答（{type(error).__name__}）；已收到的消息都在它的磁盘上",
                "启动 Redis，或者改 REDIS_URL；在容器里主机名是服务名 redis，不是 127.0.0.1",
            )
        ]


def live(settings: Settings) -> list[ProcessReport]:
    """Every process that lives; none when Redis does not answer, which ``check`` reports."""
    if not settings.redis_url:
        return []
    try:
        with connect(settings.redis_url, timeout_s=3.0) as client:
            return reports(client)
    except redis.RedisError:
        return []


def _latency(client: redis.Redis) -> Finding:
    client.ping()
    started = time.perf_counter()
    for _ in range(_PINGS):
        client.ping()
    each_ms = (time.perf_counter() - started) * 1000 / _PINGS
    fact = f"Redis 有回答，一次往返 {each_ms:.2f} 毫秒"
    if each_ms > SLOW_REDIS_MS:
        return warn("redis", fact, "把 Redis 放到同一台机器或同一个机房；回调要在 5 秒内答完")
    return ok("redis", fact)


def _durability(client: redis.Redis) -> list[Finding]:
    findings = []
    persistence = client.info("persistence")
    memory = client.info("memory")
    if not persistence.get("aof_enabled"):
        findings.append(
            fail(
                "redis_aof",
                "Redis 没有开 AOF：它一重启，排队的消息就没了",
                "redis-cli CONFIG SET appendonly yes，并写进 redis.conf（appendfsync everysec）",
            )
        )
    elif persistence.get("aof_last_write_status") != "ok":
        findings.append(
            fail("redis_aof", "Redis 写 AOF 失败", "检查 Redis 数据盘的空间和权限，看 Redis 日志")
        )
    else:
        findings.append(ok("redis_aof", "Redis 开着 AOF，最近一次写盘成功"))
    policy = str(memory.get("maxmemory_policy", ""))
    if policy == "noeviction":
        findings.append(ok("redis_policy", "Redis 内存满时拒绝写入，不丢数据（noeviction）"))
    else:
        findings.append(
            fail(
                "redis_policy",
                f"Redis 内存满时会丢数据（maxmemory-policy {policy}）",
                "redis-cli CONFIG SET maxmemory-policy noeviction，并写进 redis.conf",
            )
        )
    return findings


def _processes(client: redis.Redis) -> list[Finding]:
    found = reports(client)
    findings = []
    for role, title, command in (
        ("turns", "模型进程", "python -m workers turns"),
        ("sender", "发送进程", "python -m workers sender"),
        ("sweeper", "巡检进程", "python -m workers sweeper"),
        ("web", "网关", "python -m app web"),
    ):
        mine = [report for report in found if report.role == role]
        if mine:
            size_mb = sum(report.rss_bytes for report in mine) / 1e6
            findings.append(ok(role, f"{title}：{len(mine)} 个在运行，内存 {size_mb:.0f} MB"))
        else:
            remedy = f"启动它（{command}，或 docker compose up -d），看它的日志为什么退出"
            findings.append(fail(role, f"{title}没有在运行；消息会留在队列里", remedy))
        findings += [finding for report in mine if (finding := _growth(report))]
    return findings


def _growth(report: ProcessReport) -> Finding | None:
    """A process that holds far more than it did once it was warm."""
    warm = report.warm_rss_bytes
    if not warm or report.rss_bytes < LARGE_GROWTH * warm:
        return None
    return warn(
        "memory_growth",
        f"{report.role} 的内存从 {warm / 1e6:.0f} MB 长到了 {report.rss_bytes / 1e6:.0f} MB",
        "docker compose restart 这个服务（不丢消息），并把 /metrics 里它的内存曲线报给我们",
    )


def _queue(client: redis.Redis) -> Finding:
    queued = Gate(client).queued()
    if not queued:
        return ok("queue", "队列是空的")
    age_s = oldest_waiting_s(client, time.time())
    fact = f"{queued} 个问题没有答完，最久的等了 {age_s:.0f} 秒"
    if age_s < LATE_S:
        return ok("queue", fact)
    remedy = "看模型进程是否在运行、是否太慢（python -m app top）；可以加模型进程或用更快的设备"
    return warn("queue", fact, remedy)


def _alerts(client: redis.Redis, settings: Settings) -> list[Finding]:
    from app.store.app_state import AppState

    findings = []
    state = AppState(client)
    held_ms = state.held_since_ms(settings.wecom_corp_id, settings.wecom_agent_id)
    if held_ms:
        since = time.strftime("%m-%d %H:%M", time.localtime(held_ms / 1000))
        remedy = "在管理页 /admin 的「发件箱」里恢复发送；积压的答案会按顺序发出"
        findings.append(warn("outbox_held", f"管理员从 {since} 起暂停了发送", remedy))
    for app, alert in state.alerts().items():
        remedy = (
            f"在企业微信后台「企业可信IP」里加上 {alert.allow_ip}；之后会自动恢复发送"
            if alert.allow_ip
            else "按原因改好设置；之后会自动恢复发送，积压的答案一条不丢"
        )
        findings.append(fail("outbox", f"应用 {app} 暂停发送：{alert.reason}", remedy))
    return findings or [ok("outbox", "发送没有被暂停")]
