"""The settings table: defaults, refusals that name the variable, secrets kept out of sight."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from app.settings import SETTINGS, SettingsError, env_example, load, markdown_table
from app.store import keys
from inference.config import EngineConfig, parse_memory
from tests.app.wecom.sealing import KEY


def test_defaults_load_from_an_empty_environment() -> None:
    settings = load({})
    assert settings.wecom_api_base == "https://qyapi.weixin.qq.com"
    assert settings.admin_token == ""
    assert settings.data_dir == Path("var")
    assert (settings.today, settings.log_message_text) == (None, False)


def test_values_are_parsed() -> None:
    settings = load(
        {
            "HUTONG_PORT": "9000",
            "HUTONG_TODAY": "2024-11-15",
            "WECOM_API_BASE": "http://127.0.0.1:8081/",
            "LOG_MESSAGE_TEXT": "1",
            "WECOM_ENCODING_AES_KEY": KEY,
        }
    )
    assert (settings.port, settings.today) == (9000, datetime.date(2024, 11, 15))
    assert (settings.wecom_api_base, settings.log_message_text) == ("http://127.0.0.1:8081", True)


@pytest.mark.parametrize("name", ["WECOM_CORPID", "HUTONG_PROT", "WECOM_"])
def test_an_unknown_variable_of_ours_is_refused_and_named(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: "x"})


def test_an_unknown_variable_comes_with_the_name_it_resembles() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"HUTONG_PROT": "secret-value", "HUTONG_XYZ": "1"})
    assert str(caught.value).splitlines() == [
        "不认识的设置 HUTONG_PROT，是不是 HUTONG_PORT？",
        "不认识的设置 HUTONG_XYZ，全部设置见 deploy/.env.example",
    ]


def test_variables_of_others_are_ignored() -> None:
    load({"PATH": "/bin", "HOME": "/", "LANG": "C"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HUTONG_PORT", "http"),
        ("HUTONG_TODAY", "tomorrow"),
        ("HUTONG_ACK_AFTER_S", "3s"),
        ("LOG_MESSAGE_TEXT", "maybe"),
        ("WECOM_API_BASE", "127.0.0.1"),
        ("WECOM_ENCODING_AES_KEY", KEY[:42]),
        ("WECOM_ENCODING_AES_KEY", KEY + " "),
        ("WECOM_ENCODING_AES_KEY", KEY[:42] + "+"),
    ],
)
def test_a_malformed_value_is_refused_and_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: value})


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("HUTONG_PORT", ["0", "99999", "-1", "80.5"], "应是 1–65535 的整数"),
        ("HUTONG_MAX_NUM_SEQS", ["0", "9"], "应是 1–8 的整数"),
        ("HUTONG_MAX_MODEL_LEN", ["1535", "-2048"], "应是不小于 1536 的整数"),
        ("HUTONG_MAX_STEPS", ["0", "21"], "应是 1–20 的整数"),
        ("HUTONG_HISTORY_TOKENS", ["-1"], "应是不小于 0 的整数"),
        ("HUTONG_USER_RATE_PER_MIN", ["-1"], "应是不小于 0 的整数"),
        ("HUTONG_MAX_QUEUED", ["-1"], "应是不小于 0 的整数"),
        ("HUTONG_TURN_TIMEOUT_S", ["0", "-3", "nan", "inf"], "应是大于 0 的秒数"),
        ("HUTONG_ACK_AFTER_S", ["0", "-inf"], "应是大于 0 的秒数"),
        ("HUTONG_SESSION_EXPIRY_S", ["0", "nan"], "应是大于 0 的秒数"),
        ("HUTONG_RETENTION_DAYS", ["0", "366", "7d"], "应是 1–365 的整数"),
        ("HUTONG_DEVICE", ["gpu", "cuda:0"], "应是 cpu 或 cuda"),
        ("HUTONG_GPU_MEMORY_LIMIT", ["6", "0GB", "six"], "应是 6GB 或 5900MiB 这样的大小"),
        ("HUTONG_LM_HEAD_DTYPE", ["bf16"], "应是 fp16、int8 或 int4"),
    ],
)
def test_numbers_out_of_range_are_refused_with_what_is_expected(
    name: str, values: list[str], wanted: str
) -> None:
    for value in values:
        with pytest.raises(SettingsError) as caught:
            load({name: value})
        assert str(caught.value).startswith(f"{name}={value} 不对：{wanted}")


def test_the_ends_of_the_ranges_are_taken() -> None:
    low = load({"HUTONG_PORT": "1", "HUTONG_MAX_NUM_SEQS": "1", "HUTONG_MAX_MODEL_LEN": "1536"})
    high = load({"HUTONG_PORT": "65535", "HUTONG_MAX_NUM_SEQS": "8", "HUTONG_MAX_STEPS": "20"})
    assert (low.port, low.max_num_seqs, low.max_model_len) == (1, 1, 1536)
    assert (high.port, high.max_num_seqs, high.max_steps) == (65535, 8, 20)
    assert load({"HUTONG_HISTORY_TOKENS": "0", "HUTONG_MAX_QUEUED": "0"}).history_tokens == 0


def test_gpu_memory_is_read_as_the_engine_reads_it() -> None:
    for text in ("6GB", "6.5gb", "5900MiB"):
        assert load({"HUTONG_GPU_MEMORY_LIMIT": text}).gpu_memory_limit == parse_memory(text)
    # Without settings the engine gets its own defaults.
    settings, engine = load({}), EngineConfig()
    for name in ("device", "gpu_memory_limit", "backbone_dtype", "lm_head_dtype", "kv_cache_dtype"):
        assert getattr(settings, name) == getattr(engine, name)


def test_what_has_ended_is_kept_for_a_week_or_as_long_as_set() -> None:
    assert load({}).ended_expiry_s == keys.ENDED_EXPIRY_S
    assert load({"HUTONG_RETENTION_DAYS": "30"}).ended_expiry_s == 30 * 86_400


SECRETS = [s.name for s in SETTINGS if s.secret]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_comes_from_a_file_without_its_line_end(name: str, tmp_path: Path) -> None:
    value = KEY if name == "WECOM_ENCODING_AES_KEY" else "a secret: 密"
    file = tmp_path / "secret"
    file.write_text(value + "\r\n", encoding="utf-8")
    settings = load({f"{name}_FILE": str(file)})
    assert settings == load({name: value})
    assert value not in repr(settings)


def test_only_a_secret_may_come_from_a_file() -> None:
    with pytest.raises(SettingsError, match="不认识的设置 HUTONG_PORT_FILE"):
        load({"HUTONG_PORT_FILE": "/etc/hostname"})


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_secret_is_refused_and_its_name_not_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "perhaps-the-token-itself"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match="ADMIN_TOKEN_FILE 指的文件") as caught:
        load({"ADMIN_TOKEN_FILE": str(file)})
    assert "perhaps" not in str(caught.value)


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one")
    with pytest.raises(SettingsError, match="WECOM_TOKEN 和 WECOM_TOKEN_FILE 只能设置一个"):
        load({"WECOM_TOKEN": "two", "WECOM_TOKEN_FILE": str(file)})


def test_a_malformed_secret_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"WECOM_ENCODING_AES_KEY": "almost-the-right-key"})
    assert "almost" not in str(caught.value)


def test_repr_hides_every_secret() -> None:
    secrets = {s.name for s in SETTINGS if s.secret}
    assert {"WECOM_CORP_SECRET", "WECOM_TOKEN", "WECOM_ENCODING_AES_KEY", "ADMIN_TOKEN"} < secrets
    marked = {name: f"hidden{i}" for i, name in enumerate(secrets)}
    marked["WECOM_ENCODING_AES_KEY"] = KEY
    shown = repr(load(marked))
    assert "***" in shown
    assert all(value not in shown for value in marked.values())


def test_require_names_everything_missing() -> None:
    with pytest.raises(SettingsError, match=r"没有设置 WECOM_CORP_ID、WECOM_TOKEN"):
        load({}).require("WECOM_CORP_ID", "WECOM_TOKEN")
    load({"WECOM_TOKEN": "x"}).require("WECOM_TOKEN")


def test_the_example_and_the_table_hold_every_setting() -> None:
    example, table = env_example(), markdown_table()
    for setting in SETTINGS:
        assert f"{setting.name}={setting.default}" in example.splitlines()
        assert f"| `{setting.name}` |" in table


def test_the_example_loads_to_the_defaults() -> None:
    pairs = [line.split("=", 1) for line in env_example().splitlines() if "=" in line]
    assert load({n: v for n, v in pairs if not n.startswith("#")}) == load({})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", Path("data/company.db")),
        ("erp.db", Path("erp.db")),
        ("mysql+pymysql://u:p@db/erp", "mysql+pymysql://u:p@db/erp"),
        ("postgresql+psycopg://u:p@db/erp", "postgresql+psycopg://u:p@db/erp"),
    ],
)
def test_the_company_database_is_a_file_or_a_url(given: str, wanted: Path | str) -> None:
    settings = load({"HUTONG_DATA_DIR": "data", "HUTONG_SQL_DATABASE": given})
    assert settings.company_database == wanted


def test_a_url_of_another_kind_is_refused_without_its_password() -> None:
    with pytest.raises(SettingsError, match="HUTONG_SQL_DATABASE") as caught:
        load({"HUTONG_SQL_DATABASE": "oracle://u:hunter2@db/erp"})
    assert "hunter2" not in str(caught.value)
    assert "mysql+pymysql://" in str(caught.value)
