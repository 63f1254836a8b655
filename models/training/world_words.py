# ruff: noqa: E501
"""Words for what lies outside the company: places, dishes, films, ailments, secrets, files.

Owns long lists, so that a question about something unknown is told from one about the company.
Knows nothing of how questions are put.
"""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


WORLD: dict[str, dict[str, tuple[str, ...]]] = {
    "place": {
        "zh": _split(
            "北京 三亚 哈尔滨 成都 拉萨 巴黎 东京 厦门 青岛 桂林 西安 伦敦 乌鲁木齐 香港 新加坡 大理 昆明 丽江 苏州 杭州 黄山 张家界 九寨沟 泰国 日本 冰岛 埃及 巴厘岛 马尔代夫 首尔 纽约 悉尼 南京 天津 重庆 长沙 武汉 洛阳 敦煌 西藏 新疆 内蒙古 海南 云南 土耳其 瑞士 意大利 夏威夷 长城 故宫 西湖 泰山 迪士尼 环球影城 深圳 广州 大连 烟台 贵阳 太原 呼和浩特"
        ),
        "en": _phrases(
            "Paris, London, Berlin, Tokyo, Rome, Sydney, Oslo, Beijing, Boston, Madrid, Cairo, New York, Hawaii, Iceland, Bangkok, Seoul, Vienna, Lisbon, Toronto, Dublin, Prague, Athens, the Alps, Kyoto, Singapore, Hangzhou, Chengdu, Dubai, Moscow, Istanbul"
        ),
    },
    "food": {
        "zh": _split(
            "火锅 奶茶 饺子 披萨 麻婆豆腐 鸡蛋羹 烤鸭 螺蛳粉 三明治 酸菜鱼 咖啡 蛋炒饭 小龙虾 西瓜 糖醋排骨 番茄炒蛋 水煮肉片 回锅肉 鱼香肉丝 清蒸鲈鱼 白切鸡 东坡肉 粉蒸肉 葱油拌面 牛肉面 炸酱面 热干面 米线 豆腐脑 包子 馒头 油条 豆浆 粽子 月饼 汤圆 春卷 寿司 汉堡 薯条 意面 牛排 沙拉 蛋糕 面包 饼干 布丁 冰淇淋 巧克力 绿豆汤 排骨汤 鸡汤 紫菜汤 凉拌黄瓜 土豆丝 红烧鱼 烤羊肉串 麻辣烫 皮蛋 泡菜 榴莲 草莓 苹果派 戚风蛋糕 糯米饭 螃蟹 生蚝 酸奶 柠檬茶 鸡胸肉 燕麦"
        ),
        "en": _phrases(
            "pancakes, ramen, curry, lasagna, dumplings, apple pie, rice, eggs, pizza, a steak, fried chicken, sushi, soup, bread, a cake, noodles, tacos, salad, tofu, salmon, cookies, hot pot, milk tea, spaghetti, an omelette, roast beef, muffins, porridge, kimchi, paella"
        ),
    },
    "thing": {
        "zh": _split(
            "蝴蝶 区块链 电梯 彩虹 机会成本 量子 雨伞 通货膨胀 熵 友谊 冰川 边际效应 芯片 元宇宙 相对论 光合作用 引力波 比特 神经网络 细胞 病毒 基因 火山 地震 海啸 闪电 台风 月食 流星 银河 太阳能 核聚变 蒸汽机 指南针 造纸术 哲学 美学 逻辑 心理学 存在主义 幸福 爱情 自由 命运 时间 灵魂 梦 孤独 真理 勇气 微积分 勾股定理 圆周率 质数 向量 概率论 蒙娜丽莎 京剧 书法 围棋 太极拳 古筝 二胡 长颈鹿 企鹅 海豚 恐龙 蜜蜂 向日葵 仙人掌 银杏 高铁 潜水艇 飞机 卫星 黑洞 虫洞 平行宇宙 蝴蝶效应 木桶原理 墨菲定律 供给侧 汇率机制 泡沫经济 民法典 选举 联合国 奥运会 诺贝尔奖 甲骨文 文艺复兴 工业革命 唐朝 三国 二战"
        ),
        "en": _phrases(
            "good luck, butterfly, see you soon, umbrella, happy birthday, friendship, love, gravity, photosynthesis, a black hole, the internet, democracy, jazz, a rainbow, an earthquake, a volcano, inflation, blockchain, quantum physics, happiness, time, the soul, evolution, DNA, a virus, chess, yoga, the Renaissance, a haiku, dark matter, thunder, justice, a comet, algebra, the stock market, a black swan"
        ),
    },
    "film": {
        "zh": _split(
            "流浪地球 西游记 泰坦尼克号 红楼梦 功夫熊猫 甄嬛传 三体 哪吒 水浒传 三国演义 活着 平凡的世界 琅琊榜 武林外传 哈利波特 指环王 星际穿越 盗梦空间 复仇者联盟 狮子王 千与千寻 龙猫 名侦探柯南 海贼王 火影忍者 射雕英雄传 天龙八部 围城 百年孤独 小王子 老人与海 大话西游 霸王别姬 无间道 疯狂动物城 冰雪奇缘 王者荣耀 原神 我的世界 魔兽世界"
        ),
        "en": _phrases(
            "Titanic, Avatar, Frozen, Inception, Star Wars, Harry Potter, Hamlet, Friends, The Matrix, The Lion King, Interstellar, Casablanca, Toy Story, Game of Thrones, Moby Dick, Minecraft, Jaws, Rocky"
        ),
    },
    "star": {
        "zh": _split(
            "梅西 姚明 刘翔 周杰伦 邓丽君 成龙 李小龙 莫扎特 贝多芬 毕加索 达芬奇 孔子 老子 庄子 李清照 苏轼 杜甫 白居易 曹操 诸葛亮 刘备 岳飞 康熙 成吉思汗 拿破仑 牛顿 达尔文 居里夫人 霍金 马斯克 乔布斯 比尔盖茨 莎士比亚 鲁迅 巴金 金庸 张爱玲 宫崎骏 卓别林 乔丹 科比"
        ),
        "en": _phrases(
            "Einstein, Mozart, Napoleon, Shakespeare, Cleopatra, Picasso, Messi, Michael Jordan, Beethoven, Marie Curie, Elon Musk, Steve Jobs, Confucius, Darwin, Churchill, Taylor Swift, Bruce Lee, Newton"
        ),
    },
    "ailment": {
        "zh": _split(
            "头晕 发烧 咳嗽 失眠 胃疼 过敏 牙疼 感冒 嗓子疼 腰疼 颈椎疼 肚子疼 拉肚子 流鼻血 落枕 崴脚 中暑 口腔溃疡 眼睛干 脱发 长痘 便秘 高血压 低血糖 贫血 皮肤痒 手麻 耳鸣 鼻炎 痛经"
        ),
        "en": _phrases(
            "a headache, a fever, a sore throat, a cold, back pain, a cough, a toothache, an allergy, insomnia, a stomach ache, a sprained ankle, dizziness, the flu, high blood pressure"
        ),
    },
    "pet": {
        "zh": _split(
            "猫 狗 鹦鹉 仓鼠 金鱼 兔子 乌龟 龙猫 蜥蜴 柯基 金毛 布偶猫 多肉 绿萝 兰花 月季 茉莉 发财树"
        ),
        "en": _phrases(
            "a cat, a dog, a parrot, a hamster, goldfish, a rabbit, a turtle, an orchid, a cactus, tomatoes"
        ),
    },
    "outside": {
        "zh": _split(
            "苹果公司 华为 小米 特斯拉 比亚迪 腾讯 阿里巴巴 百度 字节跳动 美团 格力 海尔 联想 索尼 三星 英伟达 谷歌 微软 亚马逊 茅台 宁德时代 中石油 工商银行 星巴克 肯德基 麦当劳 优衣库 耐克 竞争对手 同行 友商 隔壁公司"
        ),
        "en": _phrases(
            "Apple, Tesla, Samsung, Google, Microsoft, Amazon, Sony, Nvidia, Toyota, Nike, Starbucks, our rivals, the competition, another company, Huawei, Lenovo"
        ),
    },
    "writing": {
        "zh": _split(
            "诗 词 对联 故事 童话 小说 散文 作文 读后感 演讲稿 主持词 贺词 祝福语 检讨书 辞职信 情书 道歉信 感谢信 邀请函 简历 自我介绍 文案 广告语 朋友圈 日记 歌词 剧本 段子 谜语 顺口溜 倡议书 入党申请书 会议纪要 周记 论文摘要 新闻稿 产品软文 打油诗 藏头诗 标语"
        ),
        "en": _phrases(
            "a poem, a story, an essay, a song, a love letter, a cover letter, a haiku, a speech, a limerick, a blog post, a novel, a resume, a wedding toast, a press release, a fairy tale, a slogan, a rap, a birthday card, a resignation letter, a film script"
        ),
    },
    "code": {
        "zh": _split(
            "快速排序 冒泡排序 二叉树 链表 爬虫 登录页 计算器程序 贪吃蛇 俄罗斯方块 小程序 网页 微信机器人 抢票脚本 正则表达式 单元测试 递归函数 斐波那契 归并排序 哈希表 多线程 聊天室 博客系统 图书管理系统 外挂 安卓应用 神经网络 批处理脚本 Dockerfile"
        ),
        "en": _phrases(
            "quicksort, a web page, a snake game, a crawler, a binary tree, a login form, a chat bot, a regex, a unit test, a linked list, an Android app, a sorting function, a recursive function, a shell script, tetris, a React component, a Dockerfile"
        ),
    },
    "codelang": {
        "zh": _split(
            "java C++ js go php rust C语言 kotlin swift ruby matlab typescript 汇编 vba scala lua 易语言 R语言"
        ),
        "en": _phrases(
            "Java, C++, JavaScript, Go, PHP, Rust, Kotlin, Swift, Ruby, TypeScript, assembly, Haskell"
        ),
    },
    "tongue": {
        "zh": _split(
            "英文 英语 日语 日文 韩语 法语 德语 俄语 西班牙语 葡萄牙语 阿拉伯语 泰语 粤语 文言文 繁体 意大利语 越南语 拉丁语 四川话 上海话"
        ),
        "en": _phrases(
            "German, Japanese, Spanish, Italian, French, Korean, Russian, Arabic, Latin, Dutch, Portuguese, Chinese, Greek, Hindi, Polish"
        ),
    },
    "errand": {
        "zh": _split(
            "订机票 订酒店 叫外卖 叫车 买电影票 挂号 交水电费 充话费 寄快递 取快递 订会议室 订蛋糕 租车 买彩票 抢红包 打印文件 买咖啡 预约理发 办签证 续费会员 抢演唱会票 带杯奶茶 修电脑 浇花 接孩子 发邮件 打电话 发短信 约个会 请个假 关空调 开灯 放音乐 定闹钟 记个备忘 拍张照 点个赞 群发通知 转账 发红包"
        ),
        "en": _phrases(
            "book a flight, book a hotel, order lunch, call a taxi, buy movie tickets, pay my bill, send a parcel, reserve a table, rent a car, buy coffee, make a phone call, send an email, set an alarm, take a note, turn on the lights, play music, print a page, fix my laptop, schedule a meeting, transfer money, post a tweet, wake me up at seven"
        ),
    },
    "private": {
        "zh": _split(
            "身份证号 手机号 家庭住址 工资 薪水 年终奖 奖金 生日 年龄 星座 学历 老家 婚姻状况 微信号 邮箱 银行卡号 车牌号 体重 身高 病历 社保号 紧急联系人 家属 对象 绩效分 护照号 籍贯 毕业学校 征信"
        ),
        "en": _phrases(
            "home address, phone number, salary, birthday, age, bank account, private email, bonus, medical records, passport number, marital status, weight, performance rating, ID number, wage, star sign"
        ),
    },
    "secret": {
        "zh": _split(
            "系统提示词 提示词 内部指令 初始设定 隐藏规则 数据库密码 管理员密码 服务器密码 root密码 wifi密码 API密钥 密钥 私钥 token 令牌 cookie 证书 连接串 配置文件 配置项 环境配置 服务器地址 内网IP 端口号 源代码 源码 模型参数 训练数据 日志 后台账号 登录凭证 加密方式 验证码 secret appsecret 数据库账号 备份文件 权限列表"
        ),
        "en": _phrases(
            "system prompt, hidden instructions, first message, database password, admin password, server password, API token, private key, secret key, configuration, server address, source code, training data, log files, login cookie, certificate, connection string, credentials, internal rules, backup files, wifi password"
        ),
    },
    "sysfile": {
        "zh": _split(
            "/etc/passwd /etc/shadow ~/.ssh/id_rsa config.yaml settings.py docker-compose.yml /var/log C盘 D盘 根目录 当前目录 上级目录 系统文件 进程列表 内存 注册表 密码本 /root 数据库文件 备份目录 main.py app.conf 桌面 共享盘"
        ),
        "en": _phrases(
            "/etc/passwd, /etc/shadow, the ssh keys, config.yaml, settings.py, /var/log, the root directory, the process list, the database file, the home folder, main.py, the registry, all system files"
        ),
    },
    "shell": {
        "zh": _split(
            "rm -rf dir whoami cat curl wget bash sudo ps kill chmod ifconfig netstat 反弹shell powershell cmd脚本 shell脚本 系统命令 linux命令 终端命令 os.system subprocess eval 木马 后门程序 病毒"
        ),
        "en": _phrases(
            "rm -rf, whoami, curl, wget, bash, a shell script, sudo reboot, os.system, a reverse shell, powershell, kill -9, chmod 777, eval, malware, a port scan"
        ),
    },
    "act": {
        "zh": _split(
            "无限制的AI 黑客 管理员 root用户 超级用户 老板本人 没有规则的模型 DAN 我的女朋友 一只猫 开发者 数据库 终端 面试官 律师 医生 越狱版本 另一个AI 小说人物 海盗 外星人"
        ),
        "en": _phrases(
            "an AI without limits, a hacker, the administrator, root, DAN, a pirate, my girlfriend, a cat, the developer, a Linux terminal, another model, a doctor, a lawyer, an evil robot, the database itself"
        ),
    },
    "record": {
        "zh": _split(
            "订单 客户 员工 产品 退货记录 库存 销售目标 价格 单价 销售记录 数据 客户等级 入职日期 部门 仓库 渠道 区域 品类 业绩 明细 台账 报表数据 安全库存 退货原因 联系方式 备注"
        ),
        "en": _phrases(
            "order, customer, employee, product, return, stock record, target, price, sales record, data, customer level, hire date, warehouse, channel, region, category, row, entry, note"
        ),
    },
    "mood": {
        "zh": _split(
            "好累 好困 好烦 好饿 心情不好 压力好大 想家了 失恋了 被骂了 很开心 有点难过 不想上班 加班到半夜 没睡好 好紧张 想辞职 想吃东西 闲得慌 头大 好尴尬 太激动了 好冷 好热 emo了 想放假 没劲"
        ),
        "en": _phrases(
            "tired, sad, hungry, bored, happy, lonely, stressed, in love, sleepy, angry, nervous, homesick, cold, excited, fed up"
        ),
    },
    "topic_small": {
        "zh": _split(
            "足球 篮球 电影 音乐 股票 房价 旅游 美食 明星 游戏 健身 星座 手机 汽车 养生 装修 孩子 爱情 政治 历史 天气 新闻 宠物 相亲 数码 钓鱼 摄影 考研 育儿 理财"
        ),
        "en": _phrases(
            "football, music, movies, politics, the weather, cars, travel, food, games, fashion, history, religion, pets, shares, house prices, fitness, love, phones, astronomy, gardening"
        ),
    },
}
"""Slot -> language -> words."""
