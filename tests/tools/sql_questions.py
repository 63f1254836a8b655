"""Twenty plain questions and their SQL, as the shipped model writes it: SQLite's dialect."""

from __future__ import annotations

QUESTIONS: tuple[tuple[str, str], ...] = (
    (
        "分析华东区Q3销售TOP5产品",
        "SELECT product_name, SUM(quantity*price) AS 销售额 FROM sales_data WHERE region='华东'"
        " AND year=2024 AND quarter=3 GROUP BY product_name ORDER BY 销售额 DESC LIMIT 5",
    ),
    (
        "2024年每月销售额趋势",
        "SELECT month, SUM(quantity*price) AS 销售额 FROM sales_data WHERE year=2024"
        " GROUP BY month ORDER BY month",
    ),
    (
        "上季度各品类销售额占比",
        "SELECT category, SUM(quantity*price)*100.0/(SELECT SUM(quantity*price) FROM sales_data"
        " WHERE year=2024 AND quarter=3) AS 占比 FROM sales_data WHERE year=2024 AND quarter=3"
        " GROUP BY category ORDER BY 占比 DESC",
    ),
    ("公司有多少员工", "SELECT COUNT(*) AS 人数 FROM staff"),
    (
        "各部门人数",
        "SELECT department, COUNT(*) AS 人数 FROM staff GROUP BY department ORDER BY 人数 DESC,"
        " department",
    ),
    (
        "2023年入职的员工",
        "SELECT name, hire_date FROM staff WHERE hire_date >= '2023-01-01' AND hire_date <"
        " '2024-01-01' ORDER BY hire_date, name",
    ),
    (
        "按年月看退货数量",
        "SELECT strftime('%Y-%m', date) AS 年月, SUM(quantity) AS 退货数量 FROM returns WHERE"
        " year=2024 GROUP BY 年月 ORDER BY 年月",
    ),
    (
        "每个季度的销售额",
        "SELECT date_trunc('quarter', date) AS 季度, SUM(quantity*price) FROM sales_data WHERE"
        " date >= '2023-01-01' GROUP BY 1 ORDER BY 1",
    ),
    (
        "7月的订单数",
        "SELECT COUNT(*) FROM sales_data WHERE date LIKE '2024-07%'",
    ),
    (
        "平均每单件数",
        "SELECT SUM(quantity)/COUNT(*) AS 件数 FROM sales_data WHERE year=2024",
    ),
    (
        "退货率",
        "SELECT ROUND((SELECT SUM(quantity) FROM returns WHERE year=2024)*100.0/SUM(quantity), 2)"
        " AS 退货率 FROM sales_data WHERE year=2024",
    ),
    (
        "低于安全库存的产品",
        "SELECT product_name, warehouse, stock, safety_stock FROM inventory WHERE stock <"
        " safety_stock ORDER BY product_name, warehouse",
    ),
    (
        "各区域目标完成率",
        "SELECT t.region, SUM(s.总额)/SUM(t.amount) AS 完成率 FROM targets t JOIN (SELECT region,"
        " year, quarter, SUM(quantity*price) AS 总额 FROM sales_data GROUP BY region, year,"
        " quarter) s ON s.region=t.region AND s.year=t.year AND s.quarter=t.quarter WHERE"
        " t.year=2024 AND t.quarter=3 GROUP BY t.region ORDER BY 完成率 DESC",
    ),
    (
        "客单价最高的渠道",
        "SELECT channel, SUM(quantity*price)/COUNT(*) AS 客单价 FROM sales_data WHERE year=2024"
        " GROUP BY channel ORDER BY 客单价 DESC LIMIT 1",
    ),
    (
        "销售额超过500万的产品",
        "SELECT product_name, SUM(quantity*price) AS 销售额 FROM sales_data WHERE year=2024 GROUP"
        " BY product_name HAVING 销售额 > 5000000 ORDER BY 销售额 DESC",
    ),
    (
        "同比增长",
        "SELECT region, SUM(CASE WHEN year=2024 THEN quantity*price ELSE 0 END) AS 今年,"
        " SUM(CASE WHEN year=2023 THEN quantity*price ELSE 0 END) AS 去年 FROM sales_data WHERE"
        " quarter=3 GROUP BY region ORDER BY 今年 DESC",
    ),
    (
        "每个区域卖得最好的产品",
        "WITH r AS (SELECT region, product_name, SUM(quantity) AS n, RANK() OVER (PARTITION BY"
        " region ORDER BY SUM(quantity) DESC) AS k FROM sales_data WHERE year=2024 GROUP BY"
        " region, product_name) SELECT region, product_name, n FROM r WHERE k=1 ORDER BY region",
    ),
    (
        "客户姓名最长的三位",
        "SELECT name, length(name) AS 长度, substr(name, 1, 2) AS 城市 FROM customers ORDER BY 长度"
        " DESC, name LIMIT 3",
    ),
    (
        "去年双11那周的订单",
        "SELECT date, COUNT(*) AS 单数, SUM(region='华东') AS 华东 FROM sales_data WHERE date"
        " BETWEEN date('2023-11-11','-3 days') AND date('2023-11-11','+3 days') GROUP BY date"
        " ORDER BY date",
    ),
    (
        "没有订单的客户",
        "SELECT COUNT(*) AS 客户数, MIN(registered_date) AS 最早, MAX(NULL) AS 空 FROM customers c"
        " WHERE c.name NOT IN (SELECT customer FROM sales_data WHERE year=2022)",
    ),
)
