"""Calls of the simulated API, as any app would make them."""

from __future__ import annotations

from typing import Any

import requests

from app.simulator.service import Simulator


class Api:
    """The API of one simulator with a token of its own."""

    def __init__(self, base_url: str, simulator: Simulator) -> None:
        self._base = f"{base_url}/cgi-bin"
        self._corp = simulator.corp
        self.token = self.get(
            "gettoken", corpid=self._corp.corp_id, corpsecret=self._corp.corp_secret
        )["access_token"]

    def get(self, api: str, **query: str) -> dict[str, Any]:
        """GET with or without the token; the JSON answer."""
        token = {} if api == "gettoken" else {"access_token": self.token}
        answer = requests.get(f"{self._base}/{api}", params=query | token, timeout=10)
        found: dict[str, Any] = answer.json()
        return found

    def raw(self, api: str, body: dict[str, Any], timeout_s: float = 10) -> requests.Response:
        """POST; whatever comes back."""
        query = {"access_token": self.token}
        url = f"{self._base}/{api}"
        return requests.post(url, params=query, json=body, timeout=timeout_s)

    def post(self, api: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST; the JSON answer."""
        found: dict[str, Any] = self.raw(api, body).json()
        return found

    def send(self, msgtype: str, part: dict[str, Any], user: str = "WangFang") -> dict[str, Any]:
        """message/send of one message."""
        return self.post("message/send", self.message(msgtype, part, user))

    def message(self, msgtype: str, part: dict[str, Any], user: str = "WangFang") -> dict[str, Any]:
        """The body of message/send."""
        agent_id = self._corp.agent_id
        return {"touser": user, "agentid": agent_id, "msgtype": msgtype, msgtype: part}

    def upload(self, kind: str, name: str, content: bytes) -> dict[str, Any]:
        """media/upload of one file."""
        answer = requests.post(
            f"{self._base}/media/upload",
            params={"access_token": self.token, "type": kind},
            files={"media": (name, content)},
            timeout=10,
        )
        found: dict[str, Any] = answer.json()
        return found

    def download(self, media_id: str) -> requests.Response:
        """media/get; the file or a JSON error."""
        query = {"access_token": self.token, "media_id": media_id}
        return requests.get(f"{self._base}/media/get", params=query, timeout=10)
