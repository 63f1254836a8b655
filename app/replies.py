"""The fixed texts that the gateway itself answers with, without any worker.

Owns wording only; when each is sent is decided by ``app.intake``. The turn worker's texts are in
``workers.replies``.
"""

from __future__ import annotations

HELP = (
    "我可以：\n"
    "· 查数据：分析华东区Q3销售TOP5产品\n"
    "· 看趋势：2024年每月销售额趋势\n"
    "· 接着问：那华北呢\n"
    "· 做计算：帮我算一下 (1280*36+950)*0.85\n"
    "· 查制度：年假有几天\n"
    "发 /sql 看上一个回答用的SQL，/new 清除记忆，/stop 停止正在回答的问题，/help 看这段说明。"
)
SQL_OF = "“{question}”用的SQL："
NO_SQL = "上一个回答（“{question}”）没有查数据库，所以没有SQL。"
NO_ANSWER_YET = "还没有可以看的SQL：先问一个要查数据的问题，答完后再发 /sql。"
NEW_SESSION = "好的，之前的对话已清除，我们重新开始。"
STOPPED = "已停止。"
NOTHING_TO_STOP = "现在没有正在回答的问题，不用停止。排队中的问题会接着回答。"
UNKNOWN_COMMAND = "没有这个命令，发 /help 看我会做什么。"
NOT_ALLOWED = "抱歉，您还没有使用我的权限，这条消息没有处理。需要的话请联系管理员开通。"
RIGHTS_UNKNOWN = "抱歉，暂时无法确认您的使用权限，这条消息没有处理。请过几分钟再发一次。"
TOO_OFTEN = "您发得太快了，这条消息没有处理。请一分钟后再发，之前的问题会接着回答。"
OVERLOADED = "抱歉，现在排队的问题太多，这条消息没有处理。请稍后再发一次。"
