"""Names of every Redis key Hutong writes.

Owns the key layout: all keys of a user share the hash tag ``{corp:agent:user}``, so one script
may touch them on a Redis Cluster too; keys of the whole installation have no tag. Knows nothing
of what the keys hold. No secret is ever part of a key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote, unquote

PREFIX = "hutong:"

PENDING_USERS = PREFIX + "pending-users"
"""Sorted set of tags that may have messages in their inbox; score = time of the last touch."""
PENDING_OUTBOXES = PREFIX + "pending-outboxes"
"""Sorted set of tags that may have unsent parts; score = time of the last touch."""
QUEUE = PREFIX + "queue"
"""Sorted set of turn ids not ended yet by arrival; only for the place shown to the user."""
RECENT_TURNS = PREFIX + "recent-turns"
"""Sorted set of the newest turn ids by arrival (ms); only for the admin page."""
PROBLEM_PARTS = PREFIX + "problem-parts"
"""Sorted set of parts that were refused or given up, by time (ms); see ``problem_part``."""
MOST_PROBLEM_PARTS = 500
SELF_CHECK = PREFIX + "self-check"
"""What the last self-check from the admin page found, JSON."""
SELF_CHECK_RUNNING = PREFIX + "self-check-running"
"""Exists while one runs."""
METRICS = PREFIX + "metrics"
"""Hash of counters and histogram buckets; see ``app.metrics``."""
ALERTS = PREFIX + "alerts"
"""Hash ``corp:agent`` to what an administrator must mend, JSON."""
BROKER_PREFIX = PREFIX + "celery:"
"""Prefix of everything Celery's transport writes."""

DEDUPE_EXPIRY_S = 86_400
"""WeCom re-sends a callback within minutes; a day leaves room for its longest outage."""
ENDED_EXPIRY_S = 7 * 86_400
"""How long ended turns and sent parts stay readable unless ``HUTONG_RETENTION_DAYS`` differs."""


@dataclass(frozen=True)
class UserAddress:
    """One member as one app of one corp sees them."""

    corp_id: str
    agent_id: str
    user: str


def user_tag(corp_id: str, agent_id: str, user: str) -> str:
    """Tag ``corp:agent:user``; anything that could break a key is percent-encoded."""
    return ":".join(quote(part, safe="@") for part in (corp_id, agent_id, user))


def split_tag(tag: str) -> UserAddress:
    """Inverse of ``user_tag``."""
    corp_id, agent_id, user = (unquote(part) for part in tag.split(":"))
    return UserAddress(corp_id, agent_id, user)


def problem_part(tag: str, part_id: str) -> str:
    """Member of ``PROBLEM_PARTS``; a tag holds no blank."""
    return f"{tag} {part_id}"


def turn_index(turn_id: str) -> str:
    """Key that maps a turn id to its user's tag."""
    return f"{PREFIX}turn:{turn_id}"


def process(role: str, process_id: str) -> str:
    """Heartbeat key of one process; ``role`` is web, turns, sender or sweeper."""
    return f"{PREFIX}process:{role}:{process_id}"


def access_token(name: str) -> str:
    """Key of the token that all processes of one app share; ``name`` is ``corp_id:agent_id``."""
    return f"{PREFIX}access-token:{quote(name, safe=':')}"


def send_pause(corp_id: str, agent_id: str) -> str:
    """Key that exists while the outbox of an app is paused; holds why."""
    return f"{PREFIX}send-pause:{quote(corp_id, safe='')}:{quote(agent_id, safe='')}"


def send_hold(corp_id: str, agent_id: str) -> str:
    """Key that exists while an administrator holds the outbox of an app; since when, in ms."""
    return f"{PREFIX}send-hold:{quote(corp_id, safe='')}:{quote(agent_id, safe='')}"


def wrong_tokens(address: str) -> str:
    """Key that counts the wrong tokens of a minute from one network address."""
    return f"{PREFIX}wrong-tokens:{quote(address, safe='')}"


def admin_ended(session_id: str) -> str:
    """Key that exists when a session of the admin page was ended before its time."""
    return f"{PREFIX}admin-ended:{quote(session_id, safe='')}"


def send_limited(corp_id: str, agent_id: str) -> str:
    """Key that counts how often in a row WeCom's frequency limit stopped an app."""
    return f"{PREFIX}send-limited:{quote(corp_id, safe='')}:{quote(agent_id, safe='')}"


def departments(corp_id: str, user: str) -> str:
    """Key of the departments of a member."""
    return f"{PREFIX}departments:{quote(corp_id, safe='')}:{quote(user.lower(), safe='')}"


@dataclass(frozen=True)
class UserKeys:
    """The keys of one user."""

    tag: str

    @property
    def base(self) -> str:
        """Prefix of all keys of this user."""
        return f"{PREFIX}{{{self.tag}}}:"

    @property
    def inbox(self) -> str:
        """List of turn ids not ended yet, oldest first."""
        return self.base + "inbox"

    @property
    def epoch(self) -> str:
        """Number of times the user had the memory cleared."""
        return self.base + "epoch"

    def session(self, epoch: int = 0) -> str:
        """List with one JSON document of messages per ended turn, oldest first."""
        return self.base + (f"session:{epoch}" if epoch else "session")

    @property
    def outbox(self) -> str:
        """List of part ids not settled yet, oldest first."""
        return self.base + "outbox"

    @property
    def send_times(self) -> str:
        """List of times (ms) of the last sends, newest first: the member's budget."""
        return self.base + "send-times"

    @property
    def send_wait(self) -> str:
        """Exists while deliveries to this user must wait."""
        return self.base + "send-wait"

    @property
    def answered(self) -> str:
        """Hash with the id of the last turn the model answered: ``real`` and ``dry``."""
        return self.base + "answered"

    @property
    def greeted(self) -> str:
        """Exists for a day after a greeting."""
        return self.base + "greeted"

    @property
    def rate(self) -> str:
        """Sorted set of the messages of the last minute."""
        return self.base + "rate"

    @property
    def refused(self) -> str:
        """Exists while the user need not be told of a refusal again."""
        return self.base + "refused"

    @property
    def unreachable(self) -> str:
        """Exists while WeCom refuses to deliver to this user; holds the error code."""
        return self.base + "unreachable"

    def dedupe(self, dedupe_key: str) -> str:
        """Key that says a message was taken; holds its turn id."""
        return self.base + "dedupe:" + hashlib.sha256(dedupe_key.encode()).hexdigest()

    def turn(self, turn_id: str) -> str:
        """Hash of one turn."""
        return f"{self.base}turn:{turn_id}"

    def part(self, part_id: str) -> str:
        """Hash of one part of a reply."""
        return f"{self.base}part:{part_id}"

    def image(self, part_id: str) -> str:
        """The PNG of a part that is an image; lives as long as the part."""
        return f"{self.base}image:{part_id}"

    def sent_body(self, body: str) -> str:
        """Exists while WeCom's duplicate check remembers this text."""
        return self.base + "sent:" + hashlib.sha256(body.encode()).hexdigest()

    def lease(self, name: str) -> str:
        """Token of the process that works for this user now; expires."""
        return f"{self.base}lease:{name}"

    def fence(self, name: str) -> str:
        """Hash with the newest fencing token ever given out."""
        return f"{self.base}fence:{name}"

    def woken(self, name: str) -> str:
        """Exists shortly after the sweeper woke somebody for this user."""
        return f"{self.base}woken:{name}"
