"""``python -m app.simulator``: serve the simulator until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from types import FrameType

from app import settings as settings_table
from app.simulator.corp import Corp
from app.simulator.service import Simulator
from app.simulator.web import make_http_server

REQUIRED = (
    "WECOM_CORP_ID",
    "WECOM_AGENT_ID",
    "WECOM_CORP_SECRET",
    "WECOM_TOKEN",
    "WECOM_ENCODING_AES_KEY",
)


def main(argv: list[str] | None = None) -> int:
    """Run the server. Credentials come from the WECOM_* variables, as the gateway's do."""
    parser = argparse.ArgumentParser(prog="python -m app.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--callback-url", default="http://127.0.0.1:8080/wecom/callback")
    options = parser.parse_args(argv)
    try:
        settings = settings_table.load(os.environ)
        settings.require(*REQUIRED)
        agent_id = int(settings.wecom_agent_id)
    except (settings_table.SettingsError, ValueError) as error:
        print(f"模拟器没有启动：{error}", file=sys.stderr)
        return 2
    corp = Corp(
        corp_id=settings.wecom_corp_id,
        agent_id=agent_id,
        corp_secret=settings.wecom_corp_secret,
        token=settings.wecom_token,
        encoding_aes_key=settings.wecom_encoding_aes_key,
    )
    server = make_http_server(Simulator(corp, options.callback_url), options.host, options.port)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        # shutdown() waits for the serving loop, which runs in this very thread.
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"模拟器：http://{options.host}:{server.server_port}/", flush=True)
    server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
