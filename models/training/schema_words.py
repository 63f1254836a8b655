# ruff: noqa: E501
"""Other names for the demo's tables and columns, and columns and tables it does not have.

Owns word lists for ``schema_jitter``. Knows nothing of how they are combined.
"""

from __future__ import annotations

TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "sales_data": (
        ("orders", "订单"), ("sales", "销售"), ("order_detail", "订单明细"), ("sale_records", "销售记录"),
        ("sales_order", "销售单"), ("t_order", "订单表"), ("fact_sales", "销售事实"), ("trade", "交易"),
        ("deals", "成交记录"), ("xiaoshou", "销售明细"), ("dingdan", "订单"), ("transactions", "交易流水"),
        ("order_items", "订单行"), ("dw_sales", "销售宽表"), ("sell_log", "出货记录"),
    ),
    "customers": (
        ("clients", "客户资料"), ("customer", "客户"), ("kehu", "客户档案"), ("dim_customer", "客户维表"),
        ("members", "会员"), ("accounts", "客户账户"),
    ),
    "staff": (
        ("employees", "员工"), ("employee", "人员"), ("personnel", "花名册"), ("yuangong", "员工表"),
        ("hr_staff", "人事档案"), ("users", "员工资料"),
    ),
    "returns": (
        ("refunds", "退货"), ("return_orders", "退货单"), ("tuihuo", "退货记录"), ("rma", "退换货"),
        ("returned_goods", "退货明细"), ("t_return", "退货表"),
    ),
    "targets": (
        ("goals", "目标"), ("sales_targets", "销售指标"), ("budget", "销售预算"), ("kpi", "业绩目标"),
        ("quota", "销售任务"), ("mubiao", "目标表"), ("plan", "销售计划"),
    ),
    "inventory": (
        ("stock_info", "库存"), ("warehouse_stock", "仓库库存"), ("kucun", "库存表"), ("inv", "存货"),
        ("stocks", "在库"), ("goods_stock", "商品库存"),
    ),
}  # fmt: skip
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "order_id": (("id", "编号"), ("order_no", "订单编号"), ("sn", "单号"), ("bill_no", "单据号")),
    "date": (
        ("order_date", "下单日期"), ("day", "日期"), ("dt", "日期"), ("sale_date", "销售日期"),
        ("riqi", "日期"), ("biz_date", "业务日期"), ("trade_date", "交易日期"), ("created", "创建日期"),
    ),
    "year": (("yr", "年份"), ("order_year", "下单年份"), ("nian", "年"), ("fiscal_year", "年度"),
             ("y", "年"), ("year_no", "年份"), ("sale_year", "销售年份")),
    "quarter": (("qtr", "季度"), ("order_quarter", "下单季度"), ("jidu", "季度"), ("q", "季"),
                ("quarter_no", "季度号"), ("season", "季度")),
    "month": (("mon", "月份"), ("order_month", "下单月份"), ("yue", "月"), ("mth", "月"), ("m", "月"),
              ("month_no", "月份"), ("sale_month", "销售月份")),
    "quarter_label": (("year_quarter", "年季"), ("qtr_label", "季度名"), ("yq", "年季度"),
                      ("quarter_name", "季度名称")),
    "product_id": (("goods_id", "商品编号"), ("item_id", "货号"), ("sku", "SKU编码")),
    "product_name": (
        ("item_name", "商品"), ("goods", "货品"), ("sku_name", "SKU名称"), ("product", "产品"),
        ("goods_name", "商品名称"), ("item", "单品"), ("title", "商品标题"), ("product_title", "产品名称"),
        ("chanpin", "产品"), ("model", "型号"), ("spu", "款式"), ("material", "物料"), ("prod", "产品"),
        ("article", "品名"), ("shangpin", "商品"),
    ),
    "category": (
        ("kind", "类别"), ("type", "类型"), ("class", "分类"), ("product_line", "产品线"),
        ("product_type", "产品类型"), ("cate", "品类"), ("leibie", "类别"), ("cat_name", "类目"),
        ("goods_class", "商品大类"), ("family", "系列"), ("department_name", "事业部"), ("grp", "品组"),
    ),
    "region": (
        ("area", "地区"), ("zone", "片区"), ("district", "大区"), ("territory", "销售区"),
        ("quyu", "区域"), ("province", "省份"), ("market", "市场"), ("sales_area", "销售区域"),
        ("location", "地域"), ("region_name", "区域名称"), ("division", "战区"), ("country", "国家"),
    ),
    "channel": (
        ("platform", "平台"), ("source", "来源"), ("sales_channel", "销售渠道"), ("qudao", "渠道"),
        ("outlet", "销售平台"), ("shop_type", "店铺类型"), ("way", "销售方式"), ("entry", "成交入口"),
        ("channel_name", "渠道名称"), ("media", "媒介"),
    ),
    "quantity": (
        ("qty", "件数"), ("num", "数量"), ("amount_sold", "售出数量"), ("cnt", "件数"),
        ("units", "销售件数"), ("shuliang", "数量"), ("volume", "销量"), ("pieces", "件数"),
        ("sale_num", "销售数量"), ("sold", "卖出数"), ("number", "数量"), ("count_sold", "售出件数"),
    ),
    "price": (
        ("unit_price", "单价"), ("sale_price", "售价"), ("danjia", "单价"), ("price_each", "每件价格"),
        ("unit_cost", "成交单价"), ("selling_price", "销售单价"), ("deal_price", "成交价"), ("p", "价格"),
    ),
    "customer": (
        ("client", "客户名称"), ("buyer", "买家"), ("customer_name", "客户名"), ("kehu", "客户"),
        ("account", "客户账户"), ("company", "客户公司"), ("purchaser", "采购方"), ("cust", "客户"),
    ),
    "salesperson": (
        ("seller", "销售"), ("sales_rep", "销售代表"), ("rep", "业务员"), ("agent", "业务代表"),
        ("owner", "负责人"), ("yewuyuan", "业务员"), ("sales_name", "销售姓名"), ("clerk", "经办人"),
        ("manager", "客户经理"),
    ),
    "name": (("full_name", "姓名"), ("xingming", "姓名"), ("title_name", "名称"), ("mingcheng", "名称"),
             ("label", "名称")),
    "level": (("grade", "级别"), ("rank", "等级"), ("tier", "客户等级"), ("vip", "会员等级"), ("dengji", "等级")),
    "city": (("town", "城市"), ("chengshi", "城市"), ("city_name", "所在城市"), ("base", "所在地")),
    "registered_date": (("reg_date", "注册日期"), ("join_date", "注册时间"), ("signup", "注册日"),
                        ("created_at", "建档日期")),
    "department": (("dept", "部门"), ("team", "团队"), ("bumen", "部门"), ("unit", "所属部门"), ("org", "组织")),
    "hire_date": (("entry_date", "入职日期"), ("joined", "入职时间"), ("onboard_date", "到岗日期"),
                  ("ruzhi", "入职日")),
    "reason": (("cause", "退货原因"), ("why", "原因"), ("yuanyin", "原因"), ("return_reason", "退货原因"),
               ("note", "退货说明")),
    "amount": (("goal", "目标值"), ("target_amount", "目标金额"), ("target", "目标"), ("quota_amount", "任务金额"),
               ("plan_amount", "计划金额"), ("value", "目标额")),
    "warehouse": (("depot", "仓库"), ("wh", "仓"), ("store_house", "仓库名称"), ("cangku", "仓库"), ("storage", "库房")),
    "stock": (("on_hand", "在库量"), ("qty_on_hand", "现有库存"), ("kucun_num", "库存数量"), ("inventory_qty", "库存量"),
              ("balance", "结存")),
    "safety_stock": (("min_stock", "最低库存"), ("reorder_level", "安全线"), ("safe_qty", "安全库存"),
                     ("alert_stock", "预警库存")),
}  # fmt: skip
AMOUNTS = (
    ("amount", "金额"), ("total_amount", "总金额"), ("sales_amount", "销售金额"), ("money", "金额"),
    ("pay_amount", "实付金额"), ("gmv", "成交额"), ("jine", "金额"), ("revenue", "收入"),
    ("line_total", "行金额"), ("order_amount", "订单金额"),
)  # fmt: skip
"""Columns that hold quantity*price."""
DIMENSIONS: tuple[tuple[str, str, tuple[str, str], tuple[str, ...]], ...] = (
    ("brand", "品牌", ("brand", "brands"), ("云澜", "极光", "白鹭", "赤兔", "青禾", "山岚", "星野", "墨舟")),
    ("payment", "支付方式", ("payment method", "payment methods"), ("微信", "支付宝", "银行卡", "现金", "月结", "对公转账")),
    ("status", "订单状态", ("order status", "order statuses"), ("已完成", "已取消", "待发货", "已发货", "待付款")),
    ("supplier", "供应商", ("supplier", "suppliers"), ("恒达", "天成", "宏远", "嘉利", "博信", "众合")),
    ("shop", "店铺", ("shop", "shops"), ("旗舰店", "专卖店", "一号店", "二号店", "奥莱店", "快闪店")),
    ("color", "颜色", ("color", "colors"), ("黑色", "白色", "蓝色", "红色", "银色", "绿色", "金色")),
    ("age_group", "年龄段", ("age group", "age groups"), ("18岁以下", "18-25岁", "26-35岁", "36-45岁", "46岁以上")),
    ("gender", "性别", ("gender", "genders"), ("男", "女", "未知")),
    ("delivery", "配送方式", ("delivery method", "delivery methods"), ("快递", "自提", "同城送", "物流专线", "到店")),
    ("campaign", "活动", ("campaign", "campaigns"), ("双11", "618", "年货节", "开学季", "会员日", "店庆")),
    ("customer_type", "客户类型", ("customer type", "customer types"), ("企业", "个人", "政府", "学校", "经销商")),
    ("material_type", "材质", ("material", "materials"), ("金属", "塑料", "玻璃", "木质", "棉质", "陶瓷")),
    ("size", "尺码", ("size", "sizes"), ("S码", "M码", "L码", "XL码", "均码")),
    ("team_name", "战队", ("team", "teams"), ("猛虎队", "雄鹰队", "先锋队", "飞龙队", "战狼队")),
    ("plant", "工厂", ("plant", "plants"), ("一厂", "二厂", "三厂", "苏州厂", "东莞厂")),
    ("carrier", "承运商", ("carrier", "carriers"), ("顺达", "中运", "快捷", "全程", "远航")),
    ("season_tag", "季节", ("season", "seasons"), ("春季", "夏季", "秋季", "冬季")),
    ("contract_type", "合同类型", ("contract type", "contract types"), ("框架", "单笔", "年框", "补充")),
    ("industry", "行业", ("industry", "industries"), ("教育", "医疗", "金融", "制造", "零售", "政务")),
    ("device", "终端", ("device", "devices"), ("安卓", "苹果", "网页", "小程序", "平板端")),
    ("invoice_type", "发票类型", ("invoice type", "invoice types"), ("专票", "普票", "电子票", "不开票")),
    ("store_level", "门店等级", ("store level", "store levels"), ("A级", "B级", "C级", "D级")),
    ("language", "语言", ("language", "languages"), ("中文", "英文", "日文", "韩文")),
    ("origin", "产地", ("origin", "origins"), ("国产", "进口", "合资", "代工")),
    ("shift", "班次", ("shift", "shifts"), ("早班", "中班", "晚班", "夜班")),
    ("priority", "优先级", ("priority", "priorities"), ("高", "中", "低", "紧急")),
    ("spec", "规格", ("specification", "specifications"), ("标准版", "高配版", "尊享版", "入门版")),
    ("ship_city", "收货城市", ("shipping city", "shipping cities"), ("上海", "北京", "广州", "深圳", "杭州", "成都")),
)  # fmt: skip
"""(column, title, English words, values) of columns to group and filter by."""
FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("discount", "优惠金额", "discount amount", "元"), ("freight", "运费", "freight", "元"),
    ("tax", "税额", "tax", "元"), ("weight", "重量", "weight", "千克"),
    ("points", "积分", "points", ""), ("commission", "提成", "commission", "元"),
    ("rebate", "返利", "rebate", "元"), ("deposit", "定金", "deposit", "元"),
    ("service_fee", "服务费", "service fee", "元"), ("packing_fee", "包装费", "packing fee", "元"),
    ("gift_count", "赠品数", "number of gifts", "件"), ("boxes", "箱数", "number of boxes", "箱"),
    ("platform_fee", "平台佣金", "platform fee", "元"), ("ad_cost", "推广费", "advertising cost", "元"),
    ("subsidy", "补贴", "subsidy", "元"), ("profit", "利润", "profit", "元"),
    ("cost_amount", "成本", "cost", "元"), ("insurance", "保费", "insurance", "元"),
    ("paid", "回款", "money received", "元"), ("clicks", "点击量", "clicks", ""),
    ("visits", "访问量", "visits", ""), ("install_fee", "安装费", "installation fee", "元"),
)  # fmt: skip
"""(column, title, English word, unit) of columns to add up."""
DISTRACTORS: tuple[tuple[str, str], ...] = (
    ("remark", "备注"), ("memo", "说明"), ("created_by", "创建人"), ("updated_at", "更新时间"),
    ("phone", "电话"), ("address", "地址"), ("barcode", "条码"), ("is_gift", "是否赠品"),
    ("batch_no", "批次号"), ("currency", "币种"), ("rate", "汇率"), ("zip", "邮编"),
    ("coupon_code", "优惠码"), ("ip", "来源IP"), ("score", "评分"), ("lang", "语种"),
    ("email", "邮箱"), ("approved_by", "审批人"), ("tracking_no", "运单号"), ("tag", "标签"),
)  # fmt: skip
OTHER_TABLES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("suppliers", "供应商", (("supplier_name", "供应商名称"), ("contact", "联系人"), ("tel", "电话"))),
    ("expenses", "费用", (("dept_name", "部门"), ("fee", "费用"), ("fee_type", "费用类型"), ("pay_date", "付款日期"))),
    ("visits_log", "客户拜访", (("visitor", "拜访人"), ("visit_date", "拜访日期"), ("result", "结果"))),
    ("purchase", "采购", (("purchase_no", "采购单号"), ("vendor", "供应商"), ("buy_qty", "采购数量"))),
    ("attendance", "考勤", (("emp", "员工"), ("work_date", "日期"), ("hours", "工时"))),
    ("contracts", "合同", (("contract_no", "合同号"), ("party", "签约方"), ("sum", "合同金额"))),
    ("tickets", "工单", (("ticket_no", "工单号"), ("opened", "提单时间"), ("handler", "处理人"))),
    ("invoices", "发票", (("invoice_no", "发票号"), ("invoice_sum", "发票金额"), ("invoice_date", "开票日期"))),
    ("assets", "固定资产", (("asset_no", "资产编号"), ("asset_name", "资产名称"), ("keeper", "保管人"))),
    ("campaigns", "营销活动", (("camp_name", "活动名称"), ("camp_cost", "投入"), ("camp_start", "开始日期"))),
)  # fmt: skip
VALUES: dict[str, tuple[tuple[str, ...], ...]] = {
    "region": (
        ("一区", "二区", "三区", "四区", "五区"), ("东区", "西区", "南区", "北区", "中区"),
        ("浙江", "江苏", "广东", "山东", "四川", "湖北", "福建"), ("北京", "上海", "广州", "深圳", "成都", "杭州"),
        ("欧洲", "北美", "东南亚", "中东", "拉美", "日韩"), ("华东", "华南", "华北", "西部", "海外"),
        ("长三角", "珠三角", "京津冀", "成渝", "中原"), ("湖南", "河南", "安徽", "江西", "陕西", "辽宁"),
        ("鲁东", "鲁西", "苏南", "苏北", "浙北", "浙南"),
    ),
    "category": (
        ("女装", "男装", "童装", "鞋靴", "箱包"), ("零食", "饮料", "粮油", "生鲜", "酒水"),
        ("图书", "文具", "玩具", "乐器"), ("护肤", "彩妆", "洗护", "香水", "美容仪"),
        ("沙发", "床具", "灯具", "橱柜", "地板"), ("轮胎", "机油", "滤芯", "电瓶", "刹车片"),
        ("水泥", "钢材", "管材", "涂料", "板材"), ("奶粉", "尿裤", "辅食", "推车"),
        ("服务器", "存储", "网络", "安全", "软件"), ("药品", "器械", "保健品", "耗材"),
        ("手机", "电脑", "家电", "平板"), ("帐篷", "登山包", "球拍", "泳具", "自行车"),
    ),
    "channel": (
        ("官网", "小程序", "直播", "经销商", "直营"), ("线上", "线下", "代理"), ("快手", "小红书", "抖音", "视频号"),
        ("商超", "便利店", "批发", "电商", "团购"), ("电话", "展会", "转介绍", "官网"),
        ("天猫", "京东", "唯品会", "苏宁", "亚马逊"), ("加盟店", "直营店", "专柜", "网店"),
        ("企业直采", "招投标", "分销", "零售"),
    ),
    "reason": (
        ("尺寸不合", "颜色不符", "质量差", "发货慢", "不想要了"), ("破损", "过期", "漏发", "错发"),
        ("性能不达标", "客户取消", "重复下单", "运输问题"),
    ),
    "warehouse": (
        ("一号仓", "二号仓", "三号仓"), ("东仓", "西仓", "南仓", "北仓"), ("杭州仓", "深圳仓", "天津仓", "西安仓"),
        ("总仓", "前置仓", "退货仓", "保税仓"),
    ),
    "department": (
        ("生产部", "采购部", "质检部", "销售部", "仓储部"), ("运营部", "设计部", "法务部", "技术部"),
        ("总经办", "商务部", "工程部", "售后部"),
    ),
    "level": (("A级", "B级", "C级"), ("一星", "二星", "三星", "四星", "五星"), ("普通会员", "黄金会员", "铂金会员"),
              ("战略", "重点", "一般")),
}  # fmt: skip
"""Other value lists of columns that hold a few values."""
