"""Conversations and template fragments for make_text_goldens.py."""

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"later\" in a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}}
LOOKUP = {"type": "function", "function": {"name": "lookup", "description": "\u041f\u043e\u0438\u0441\u043a \u6771\u4eac \U0001f600", "parameters": {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "number"}}, "max": {"maximum": 18446744073709551615, "x": 1.5e-7}}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text):
    return {"role": "tool", "content": text}


def call(name, **arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("get_weather", city="Paris", days=2)]
MANY = [call("lookup", items=[1, 2.5, -3e20], flag=True, off=False, nothing=None, text="two\nlines", table={"k": ["v", {"n": None}], "\u00fc": "\u2028"}, half=0.5, big=10**15, tiny=1e-9),
        call("get_weather", city="\u6771\u4eac"), call("empty")]

CONVERSATIONS = [
    [user("Hi")],
    [user("  trimmed \n\n")],
    [system("Be brief."), user("Hi")],
    [system("  "), user("Hi")],
    [system(""), user("")],
    [user("\u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9 \u05e9\u05dc\u05d5\u05dd")],
    [user("a"), assistant("b"), user("c")],
    [user("a"), assistant("<think>\nhidden\n</think>\n\nb"), user("c")],
    [user("a"), assistant("<think>\nshown\n</think>\n\nb")],
    [user("a"), assistant("b", reasoning_content="because")],
    [user("a"), assistant("b", reasoning="older name")],
    [user("a"), assistant("b", thinking="oldest name", reasoning_content=None)],
    [user("a"), assistant("b", reasoning_content=""), user("c"), assistant("d", reasoning_content=" r ")],
    [user("a"), assistant("no open </think> tail </think> end"), user("c")],
    [user("a"), assistant(None, tool_calls=CALLS), tool("sunny"), assistant("It is sunny.")],
    [user("a"), assistant("", tool_calls=CALLS, reasoning_content="call it"), tool("sunny")],
    [user("a"), assistant("Let me see.", tool_calls=MANY), tool("1"), tool("2"), tool("3"), user("thanks")],
    [user("a"), assistant("x", tool_calls=MANY), tool("1"), tool("2"), assistant("y", tool_calls=CALLS), tool("3")],
    [user("a"), assistant("x", tool_calls=[])],
    [user("a"), assistant("x", tool_calls=None)],
    [user("a"), assistant("x", tool_calls=[{"name": "bare", "arguments": {"a": "b"}}]), user("b")],
    [user("q"), assistant("w"), user("<tool_response>\nfake\n</tool_response>")],
    [user("<tool_response>only</tool_response>")],
    [user([{"type": "text", "text": "part one, "}, {"type": "text", "text": "part two"}])],
    [system([{"type": "text", "text": "S"}]), user([{"type": "text", "text": "U"}]), assistant([{"type": "text", "text": "A"}]), user("end")],
    [user([{"type": "image", "image": "x.png"}, {"type": "text", "text": "what?"}])],
    [user([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "video", "video": "v"}])],
    [system([{"type": "image"}]), user("x")],
    [user([{"type": "sound"}])],
    [user({"text": "a mapping"})],
    [user(7)],
    [user(None)],
    [],
    [system("only system")],
    [assistant("only assistant")],
    [user("a"), system("late")],
    [user("a"), {"role": "developer", "content": "x"}],
    [user("a"), tool("orphan")],
    [user("<|im_end|> in <|im_start|> text")],
    [user("a\r\nb\tc\u0000d"), assistant("\u00a0x\u3000"), user("\u2028y\u200b")],
    [{"role": "user", "content": "named", "name": "bob", "extra": {"deep": [1]}}],
]
VARIANTS = [{"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False},
            {"add_generation_prompt": True, "enable_thinking": True, "tools": [WEATHER]}, {"tools": [WEATHER, LOOKUP], "preserve_thinking": True, "number_media": True}]


def conversations():
    for i, messages in enumerate(CONVERSATIONS):
        for j, variant in enumerate(VARIANTS):
            if j in (i % 4, (i + 1) % 4):
                yield {"messages": messages, **variant}


C = {"s": "Hello World", "e": "", "n": 5, "neg": -7, "f": 2.5, "t": True, "z": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"b": 2, "a": 1, "C": 3},
     "u": "na\u00efve \u4f60\u597d \U0001f600", "m": [{"role": "user", "content": "x", "n": 2}, {"role": "tool", "content": "y"}, {"role": "user", "n": 1, "sub": {"k": "v"}}],
     "q": "it's \"q\"\n\t\\ \u0001 \u00a0 <b>&", "nested": {"items": [1, {"x": None}], "keys": "K", "get": 1, "f": 1.0}}

FRAGMENTS = r"""
{{ s }}
{{ n + 1 }} {{ n - 1 }} {{ n * 2 }} {{ n / 2 }} {{ n // 2 }} {{ n % 3 }} {{ n ** 2 }}
{{ neg // 2 }} {{ neg % 3 }} {{ neg / 2 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }}
{{ 1 / 3 }} {{ 2 / 1 }} {{ 1e20 }} {{ 1e15 }} {{ 1e16 }} {{ 123456789012345678 }} {{ 0.1 + 0.2 }} {{ 1e-4 }} {{ 1e-5 }} {{ 1.5e300 }} {{ 100.0 }}
{{ -0.0 }} {{ 0 * -1.0 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5 }} {{ 1E3 }}
{{ n + f }} {{ f * 2 }} {{ t + 1 }} {{ true + true }} {{ 2 ** -1 }} {{ 2 ** 0.5 }}
{{ s ~ n ~ f ~ t ~ z ~ l ~ missing }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }} {{ 'x' * -1 }}
{{ 'a' 'b' "c" }} {{ "tab\there" }} {{ 'nl\nx' }} {{ 'q\'q' }} {{ "\x41\u00e9\U0001F600\101" }} {{ '\d\\' }}
{{ true }} {{ True }} {{ false }} {{ False }} {{ none }} {{ None }} {{ missing }}
{{ [1, 'a', none, true, 1.0, [2], {'k': 'v'}, (1,), ()] }} {{ {} }} {{ [] }} {{ {'a': 1, 2: 'b', none: [], true: 0} }}
{{ q }} {{ [q] }} {{ ["it's"] }} {{ ['"'] }} {{ ['\x7f\u200b\u00ad\u3000\ue000'] }} {{ [u] }}
{{ 1, 2 }} {{ (1, 'x') }} {{ (3) }} {{ (3,) }}
{{ n == 5 }} {{ n != 5 }} {{ n < 6 }} {{ n <= 5 }} {{ n > 5 }} {{ n >= 5 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == none }} {{ missing == missing2 }}
{{ [1] == [1] }} {{ [1] == (1,) }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ d == {'b': 2} }}
{{ 'lo' in s }} {{ 'x' not in s }} {{ 3 in l }} {{ 9 in l }} {{ 'a' in d }} {{ 1 in d }} {{ 'a' in missing }} {{ not 'a' in d }} {{ 3 in (1, 3) }} {{ '' in '' }}
{{ t and n }} {{ e and n }} {{ e or n }} {{ z or e or 'last' }} {{ not t }} {{ not not n }} {{ t and not e }} {{ 0 or [] or {} }}
{{ 'yes' if t else 'no' }} {{ 'yes' if e else 'no' }} {{ 'yes' if e }} {{ 1 if e else 2 if z else 3 }} {{ ('a' if t else 'b') ~ 'c' }}
{{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ s[0] }} {{ s[-1] }} {{ u[2] }} {{ u[6] }} {{ d['a'] }} {{ d.a }} {{ d['x'] }} {{ d.x }} {{ m[0].role }} {{ m[2].sub.k }} {{ l.0 }} {{ m.0.role }}
{{ l[1:] }} {{ l[:1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[2:0:-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ u[::-1] }} {{ s[:-6] }} {{ (1,2,3)[1:] }} {{ l[:] }} {{ l[-9:9] }}
{{ nested.items is callable }}
{{ nested['items'] }} {{ nested.f }} {{ nested['keys'] }} {{ nested['get'] }}
{{ nested.keys() | list }} {{ d.items() | list }} {{ d.values() | list }} {{ d.get('a') }} {{ d.get('x') }} {{ d.get('x', 9) }}
{{ -n }} {{ +n }} {{ -n | abs }} {{ - f }} {{ -1 ** 2 }} {{ 2 ** 3 ** 2 }}
{{ 2 * 3 ~ 4 * 5 }}
{{ 1 ~ 2 + 3 }}
{{ missing.attr }}
{{ missing() }}
{{ missing + 1 }}
{{ z.x }} {{ n.x }}
{{ z.x.y }}
{{ 1 + 'a' }}
{{ 'a' < 1 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ n() }}
{{ s.upper is callable }}
{{ s | nofilter }}
{{ s is notest }}
{{ nofunction(1) }}
{{ {[1]: 2} }}
{% unknown %}
{{ 1 + }}
{{ (1 }}
{% if t %}
{{ 'open }}
{% for x in l %}{% endif %}
{{ raise_exception('stop here') }}
{{ raise_exception('n is ' ~ n) }}
{% if n > 3 %}{{ raise_exception(u) }}{% endif %}
{% for x in l %}{{ x }},{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.nextitem is undefined }};{% endfor %}
{% for x in l %}{{ loop.cycle('odd', 'even') }}{% endfor %}
{% for x in [] %}{{ x }}{% else %}none{% endfor %}
{% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for x in z %}{{ x }}{% endfor %}
{% for x in n %}{{ x }}{% endfor %}
{% for c in u %}{{ c }}|{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}
{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }}{% endfor %}
{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.index }}/{{ loop.length }};{% else %}no{% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}no{% endfor %}
{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {{ loop.depth }}{% endfor %}{{ loop.index }};{% endfor %}
{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% for i in l %}{{ y }}{% set y = i %}{{ y }};{% endfor %}{{ y }}
{% if t %}{% set inner = 1 %}{% endif %}{{ inner }}
{% set ns = namespace(c=0) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }} {{ ns.missing }} {{ ns['c'] }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}
{% set ns = namespace(_a=1) %}{{ ns._a }}
{% set ns = {'a': 1} %}{% set ns.a = 2 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set (a, b) = [3, 4] %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set block %}text {{ n }}{% endset %}[{{ block }}]{{ block | length }}
{% set block | upper | trim %}  text {{ n }} {% endset %}[{{ block }}]
{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}
{% filter upper %}shout {{ s }}{% endfilter %}
{% macro m(a, b=2, c='x' ~ b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(b=7, a=8) }}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m() %}{{ outer }}{{ n }}{% endmacro %}{% set outer = 'O' %}{{ m() }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro m() %} x {% endmacro %}{{ m() | trim }}|{{ m() is string }}|{{ m() | length }}
{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% if e %}a{% elif z %}b{% elif n == 5 %}c{% else %}d{% endif %}
{% if e %}a{% else %}d{% endif %}{% if not e %}x{% endif %}
{% if missing %}a{% else %}b{% endif %}{% if 0 %}a{% elif 0.0 %}b{% elif [] %}c{% elif {} %}d{% elif '' %}e{% elif () %}f{% else %}g{% endif %}
{% generation %}{% set g = 1 %}gen {{ n }}{% endgeneration %}{{ g }}
{# comment #}a{#- strip -#}  c
{% raw %}{{ not }} {% rendered %}{% endraw %}
{% raw -%}  {{ x }}  {%- endraw %}!
a {{- s -}} b
a   {{- ' ' -}}   b
{{ {'a': {'b': {}}} }} {{ {'a': 1}['a'] }} {{ {}}}
{{ s.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ '  a  b '.split() }} {{ ' a b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a'.split('') }}
{{ '[' ~ '  x\n\u3000\x1c'.strip() ~ ']' }} {{ 'xxaxx'.strip('x') }} {{ 'xyaxy'.lstrip('yx') }}|{{ 'ab\n\n'.rstrip('\n') }}|{{ '  a '.lstrip() }}|{{ ' a  '.rstrip() }}|{{ '\u4f60a\u4f60'.strip('\u4f60') }}
{{ s.startswith('He') }} {{ s.endswith('d') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith(()) }} {{ s.startswith('') }}
{{ s.startswith(1) }}
{{ s.replace('o', '0') }} {{ s.replace('o', '0', 1) }} {{ 'aaa'.replace('aa', 'b') }} {{ 'ab'.replace('', '-') }} {{ u.replace('\u4f60', 'x') }}
{{ s.upper() }} {{ s.lower() }} {{ 'hello wORLD it\'s'.title() }} {{ 'hELLO'.capitalize() }} {{ '\u00e9\u00df\u01c6'.upper() }} {{ '\u00c9\u0130X'.lower()[0] }}
{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ '\n'.join(d) }}
{{ ','.join([1, 2]) }}
{{ s.find('o') }} {{ s.find('z') }} {{ s.rfind('o') }} {{ s.count('l') }} {{ u.find('\U0001f600') }} {{ 'abc'.count('') }}
{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \t'.isspace() }} {{ 'AB1'.isupper() }} {{ 'ab'.islower() }} {{ '1'.isupper() }}
{{ 'a\nb\r\nc\x0bd\u2028e\n'.splitlines() }} {{ 'prefix'.removeprefix('pre') }} {{ 'suffix'.removesuffix('fix') }} {{ 'x'.removeprefix('y') }}
{{ s | upper }} {{ s | lower }} {{ 'hello-world (foo) [bar] it\'s' | title }} {{ 'fOO bar' | capitalize }} {{ n | upper }} {{ z | upper }} {{ missing | upper }}x
{{ '  a ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ z | trim }}|{{ missing | trim }}|{{ n | trim }}
{{ s | length }} {{ u | length }} {{ l | length }} {{ d | count }} {{ missing | length }} {{ () | length }}
{{ n | length }}
{{ l | map('string') | length }}
{{ l | tojson }} {{ d | tojson }} {{ q | tojson }} {{ u | tojson }} {{ z | tojson }} {{ t | tojson }} {{ f | tojson }} {{ nested | tojson }} {{ 1e20 | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 'a') | tojson }} {{ '\x7f\u2028\x1f\b\f/' | tojson }}
{{ d | tojson(indent=2) }} {{ nested | tojson(indent=4) }} {{ [] | tojson(indent=2) }} {{ [{}, []] | tojson(indent=1) }} {{ d | tojson(indent=0) }}
{{ u | tojson(ensure_ascii=true) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ m | tojson(indent=none) }}
{{ missing | tojson }}
{{ [missing] | tojson }}
{{ d | items | list }} {{ missing | items | list }}
{{ n | items | list }}
{{ n | string ~ '!' }} {{ l | string }} {{ z | string }} {{ t | string | length }} {{ '<b>' | safe }} {{ 1.0 | string }}
{{ missing | default('D') }} {{ e | default('D') }}| {{ e | default('D', true) }} {{ z | default('D') }} {{ z | d('D', boolean=true) }} {{ missing | d }}|
{{ l | join }} {{ l | join(', ') }} {{ w | join('-') }} {{ m | join(',', attribute='role') }} {{ [1, none, 'a', true] | join('|') }}
{{ l | first }} {{ l | last }} {{ [] | first }} {{ s | first }} {{ s | last }} {{ d | first }}
{{ [] | first.x }}
{{ s | replace('o', '0') }} {{ s | replace('o', '0', 1) }} {{ n | replace(5, 6) }}
{{ s | list }} {{ d | list }} {{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }}
{{ '42' | int }} {{ ' -7 ' | int }} {{ '4.9' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ t | int }} {{ z | int }} {{ '1e3' | int }}
{{ '2.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ '1e3' | float }} {{ z | float }} {{ 'inf' | float }} {{ '0x10' | float }}
{{ missing | int }}
{{ -3 | abs }} {{ neg | abs }} {{ -2.5 | abs }} {{ l | reverse | list }} {{ s | reverse }} {{ u | reverse }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ w | sort }} {{ w | sort(case_sensitive=true) }} {{ d | sort }} {{ m[::2] | sort(attribute='n') | map(attribute='n') | list }}
{{ m | sort(attribute='role,content') | map(attribute='role') | list }}
{{ m[:2] | sort(attribute='role,content') | map(attribute='role') | list }}
{{ [1, 'a'] | sort }}
{{ [1, 2, 1, 3] | unique | list }} {{ ['a', 'A', 'b'] | unique | list }} {{ ['a', 'A'] | unique(true) | list }} {{ m | unique(attribute='role') | map(attribute='role') | list }}
{{ m | map(attribute='role') | list }} {{ m | map(attribute='n') | list }} {{ m | map(attribute='n', default=0) | list }} {{ w | map('upper') | list }} {{ ['a-b', 'c'] | map('replace', '-', '+') | list }} {{ m | map(attribute='sub.k', default='?') | list | last }} {{ [[1, 2], [3, 4]] | map(attribute=1) | list }} {{ [[1, 2]] | map(attribute='0') | list }} {{ w | map('lower') | join }}
{{ l | select('odd') | list }} {{ l | select | list }} {{ [0, 1, '', 'a'] | select | list }} {{ l | reject('odd') | list }} {{ l | select('gt', 1) | list }} {{ [none, 1] | reject('none') | list }} {{ l | select('in', [1, 2]) | list }}
{{ m | selectattr('role', 'equalto', 'user') | list | length }} {{ m | selectattr('n') | list | length }} {{ m | rejectattr('role', '==', 'user') | map(attribute='content') | list }} {{ m | selectattr('content', 'defined') | map(attribute='content') | join }}
{{ m | selectattr('sub.k', 'defined') | list }}
{% if [] | selectattr('x') %}generator is true{% endif %} {{ ([] | map('upper')) is iterable }} {{ ([] | map('upper')) is sequence }}
{% set g = l | map('string') %}{{ g | join }}|{{ g | join }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('> ') }}|{{ '' | indent }}|{{ 'a\n' | indent(1) }}
{{ d | dictsort }} {{ d | dictsort(true) }} {{ d | dictsort(by='value') }} {{ d | dictsort(reverse=true) }} {{ d | dictsort(false, 'value', true) }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.5 | round(method='ceil') }} {{ 2.5 | round(0, 'floor') }} {{ 5 | round }} {{ 2.675 | round(2) }} {{ 1234.5 | round(-2) }} {{ 0.1 | round(3) }} {{ 2.1 | round(1, 'ceil') }}
{{ l | min }} {{ l | max }} {{ w | min }} {{ w | max }} {{ [] | min }} {{ m[::2] | max(attribute='n') }} {{ ['b', 'B'] | max(case_sensitive=true) }}
{{ l | sum }} {{ [] | sum }} {{ m[::2] | sum(attribute='n') }} {{ l | sum(start=10) }} {{ [1.5, 2] | sum }}
{{ s is string }} {{ n is string }} {{ l is iterable }} {{ n is iterable }} {{ s is iterable }} {{ d is mapping }} {{ l is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ missing is iterable }} {{ missing is sequence }} {{ none is iterable }} {{ (1,) is sequence }}
{{ z is none }} {{ missing is none }} {{ missing is undefined }} {{ missing is defined }} {{ n is defined }} {{ d.x is defined }} {{ d.a is defined }} {{ n is not none }} {{ z is not none }}
{{ d.x.y is defined }}
{{ t is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ t is boolean }} {{ 1 is boolean }} {{ n is number }} {{ t is number }} {{ f is number }} {{ n is integer }} {{ t is integer }} {{ f is integer }} {{ f is float }} {{ n is float }} {{ s is number }}
{{ n is odd }} {{ n is even }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ n is eq 5 }} {{ n is equalto(5) }} {{ n is ne 5 }} {{ n is lt 6 }} {{ n is gt(6) }} {{ n is ge 5 }} {{ n is le 4 }} {{ 1 is in [1, 2] }} {{ 'x' is in 'abc' }} {{ n is sameas 5 }}
{{ range is callable }} {{ n is callable }} {{ s.upper is callable }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'aB' is lower }}
{{ n is defined and n > 3 }} {{ missing is defined or 'x' }} {{ not n is defined }} {{ 'a' if n is defined else 'b' }} {{ n is not defined or t }} {{ (n is odd) ~ 'x' }}
{{ s is string and s | length > 3 }} {{ l | length == 3 and l[0] == 3 }} {{ l | length - 1 }} {{ l | length * 2 }} {{ s | upper ~ '!' }} {{ s.split(' ')[0] | lower }} {{ (s | lower).split('o')[-1] }} {{ s | upper == 'HELLO WORLD' }}
{{ dict(a=1, b='x') }} {{ dict({'k': 1}, z=2) }} {{ dict([['a', 1]]) }} {{ dict() }} {{ dict(a=1).a }}
{{ range(2) | length }} {{ range(3)[1] }} {{ 2 in range(3) }}
{{ range(200000) | length }}
{{ range(1, 2, 0) }}
{{ d.update({'x': 1}) }}
{{ d.pop('a') }}
{{ namespace().x }} {{ namespace(a=[1]).a[0] }}
{{ l.index(1) }} {{ l.count(3) }} {{ (1, 2).index(2) }} {{ d.copy() }}
{{ l.index(9) }}
{%- set x -%} padded {%- endset -%} [{{ x }}]
{{ "{{ nested }}" }} {{ '{% raw %}' }} {{ '%}' }} {{ '#}' }}
{ { } } {% if t %}{ {{ n }} }{% endif %} {x} # % }} %} #}
{{ messages | length }} {{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}
{{ loop }}
{% set true = 1 %}
{% break %}
{{ x y }}
{{ s. }}
{{ 5.0 is integer }} {{ 1.0 }} {{ 10 ** 20 }} {{ 9223372036854775807 + 1 }} {{ 18446744073709551615 * 3 }} {{ -9223372036854775808 - 5 }}
{{ [1, 2] is eq [1, 2] }} {{ d['a'] + d['b'] }} {{ m[0]['role'][0] }} {{ m[-1].n }} {{ s[100] }} {{ s['upper']() }} {{ l['x'] }} {{ d[1] }}
{{ l[missing] }} {{ d[missing] }}
{{ m | map('items') | first | list }} {{ d | items | first | last }} {{ [3, 2] | sort | first + 1 }}
{{ (l | sort)[0] }} {{ (l | join(',')).split(',') | map('int') | sum }} {{ {'x': l}.x[1] }} {{ [l, w][1][0] }}
"""


def fragments():
    """One template a line, then those of several lines."""
    for line in FRAGMENTS.strip("\n").split("\n"):
        yield line
    yield from MULTILINE


MULTILINE = [
    "{{ '\\\nx' }}", "{# multi\nline #}b",
    "a\n  {%- if t -%}\n  b\n  {%- endif -%}\n  c", "a\n  {% if t %}\n  b\n  {% endif %}\n  c\n", "  {% if t +%}\n x\n  {%+ endif %}\n y\n\n", "x {% if t %}\ny {% endif %} z\n",
    "  {{ s }}\n  {# c #}\n  {% set q2 = 1 %}{{ q2 }}\n", "\t{% if t %}\ttab\n\t{% endif %}\n", "{%- for x in l %}\n  - {{ x }}\n{%- endfor %}\n", "{% for x in l %}\n  - {{ x }}\n{% endfor %}\ntail\n\n",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\nend", "a\r\nb\rc\n{% if t %}\r\nd{% endif %}\r\n", "{# a #}\n{# b -#}\n  c\n  {#- d #}\ne", "{% if t %}a{% endif %}\nb{{ '\n' }}\n", "{{ n }}\n\n", "\n", "\n\n", "   ", "   {% if t %}   x   {% endif %}   ",
    "x\n   {{- n -}}   \n y", "{% if t -%}\n\n   x\n\n{%- endif %}\n\n z", "\u3000{%- if t -%}\u3000x\u2003{%- endif %}", "   {%- set a = 1 %}\n   {%- set b = 2 +%}\n{{ a }}{{ b }}", "{% set a %}\n  x\n{% endset %}[{{ a }}]", "{%\n  if\n  t\n%}\nx\n{%endif%}y",
    "{{\n  s\n}}\n{{- '' }}", "  {% if t %}{% if t %}\n  x\n  {% endif %}{% endif %}\n  y", "{% raw -%}  {{ x }}  {%- endraw %}\n!", "a {#+ c +#}\n b", "  {{+ n }}", "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]", "line{% for x in l %}\n{{ x }}\n{% endfor %}",
]
