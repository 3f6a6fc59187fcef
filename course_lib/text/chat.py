"""Messages of one kind, as many as a small model needs: who tips what over what, and that it gets wet.

Their parts are those of chapter 25's two messages, which are among them.
"""

from __future__ import annotations

import random

WHO = (
    "我家猫咪",
    "我的狗",
    "她的猫咪",
    "他的孩子",
    "我的朋友",
    "隔壁的狗",
    "他的小猪",
    "她家的鸡",
)  # a cat, a dog, a child, a friend, a piglet, a chicken
DRINKS = ("咖啡", "茶", "牛奶", "汤", "水")
WHAT = (
    "我的键盘",
    "书",
    "她的手机",
    "地毯",
    "沙发",
    "我的电脑",
    "奶酪",
)  # keyboard, book, phone, carpet, sofa, computer, cheese
FORMS = ("{who}打翻了{drink}，把{what}浇得湿透了。", "{who}把{drink}打翻在{what}上，{what}也湿透了。")


def chat(messages: int, seed: int) -> str:
    """So many messages, one behind the other; some of them come twice."""
    draw = random.Random(seed)
    return "".join(
        draw.choice(FORMS).format(who=draw.choice(WHO), drink=draw.choice(DRINKS), what=draw.choice(WHAT))
        for _ in range(messages)
    )
