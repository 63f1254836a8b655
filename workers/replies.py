"""The fixed texts of turns: what a worker or the sweeper says without the model.

Owns wording only; when each is sent is decided by the turn runner and the sweeper. What the
gateway answers by itself (commands, refusals) is in ``app.replies``.
"""

from __future__ import annotations

GREETING = "你好，我是胡同。直接问我公司的数据或制度就行，例如：分析华东区Q3销售TOP5产品。"
UNSUPPORTED = "我目前只看得懂文字消息，图片、语音、文件等还不支持。请用文字告诉我您的问题。"
EMPTY = "您发来的是空消息。请用文字告诉我您的问题，发 /help 可以看示例。"
WORDLESS = "我没看懂这条消息。请用文字告诉我您的问题，发 /help 看示例。"
FAILED = "抱歉，处理您的问题时出了内部错误，问题已记录（编号 {turn_id}）。请稍后再试。"
TIMEOUT = "抱歉，这次查询超过了时限，已停止。请缩小时间或范围后再试。"
UNSENDABLE = (
    "抱歉，有一条回复企业微信没有接受，没能发给您（编号 {turn_id}）。请换个问法再试，或联系管理员。"
)
IMAGE_UNSENDABLE = (
    "抱歉，有一张表格图片没能发给您（编号 {turn_id}），前面的文字回答不受影响。请缩小范围再问一次。"
)
TABLE_IMAGE = "[图片] 表格，{rows}行、{columns}列"
PARKED = (
    "抱歉，您的这条消息连续几次都没能处理成功，已转交管理员（编号 {turn_id}）。其他问题可以继续问。"
)


_DOING = {
    "sql_query": "正在查询数据库",
    "python_exec": "正在计算",
    "doc_search": "正在查找文档",
}


def progress(tool: str, seconds: int) -> str:
    """The line sent while a long answer is worked on. ``tool`` is what runs now, "" for none."""
    return f"还在处理，{_DOING.get(tool, '正在整理答案')}（已用{seconds}秒），请再等一下。"


def ack(position: int) -> str:
    """The line sent when an answer takes longer than some seconds.

    ``position`` is the number of messages ahead in the queue, 0 when it is being worked on.
    """
    if position > 0:
        return f"收到，前面还有{position}个问题，请稍候。"
    return "收到，正在查询，请稍候。"
