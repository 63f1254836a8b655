"""Attempts within the language: walks, imports, bombs, floods. See ``attempts``."""

CODE_ATTEMPTS = (
    r"""
### walk_wrap_close
for c in ().__class__.__mro__[-1].__subclasses__():
    if c.__name__ == '_wrap_close':
        c.__init__.__globals__['system']('id > @TARGET@')
### walk_catch_warnings
for c in ''.__class__.__base__.__subclasses__():
    if c.__name__ == 'catch_warnings':
        print(c()._module.__builtins__['open']('@CANARY@').read())
### walk_loader
for c in object.__subclasses__():
    if c.__name__ == 'BuiltinImporter':
        print(c().load_module('posix').system('id > @TARGET@'))
### walk_split_getattr
base = getattr(getattr(1, '__cl' + 'ass__'), '__ba' + 'se__')
for c in getattr(base, '__sub' + 'classes__')():
    if 'Popen' in c.__name__:
        print(c(['id'], stdout=-1).communicate())
### walk_tables
print(tables.__class__.__base__.__subclasses__()[0].__init__.__globals__)
print(tables.__init__.__self__.__class__.__reduce_ex__(tables, 2))
### format_globals
def f(): pass
print('{0.__globals__}'.format(f))
print('{0.__class__.__init__.__globals__}'.format(Exception()))
### format_map_walk
import string
class A: pass
print(string.Formatter().vformat('{a.__class__.__base__.__subclasses__}', (), {'a': A()}))
print('{a.__init__.__globals__[sys].modules[os].environ}'.format(a=string.Template('')))
### generator_frame
def g():
    yield frame.f_back.f_back.f_globals['__builtins__']
it = g()
frame = it.gi_frame
print(list(it)[0]['open']('@CANARY@').read())
### traceback_frame
try:
    1 / 0
except Exception as e:
    f = e.__traceback__.tb_frame
    while f:
        print(f.f_globals, f.f_locals)
        f = f.f_back
### getframe_walk
import sys
f = sys._getframe()
while f:
    print(repr(f.f_locals)[:4000])
    f = f.f_back
### gc_secrets
import gc
seen = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
word = 'hutong-' + 'secret-'
for o in seen:
    for v in (o.values() if isinstance(o, dict) else o):
        if isinstance(v, (str, bytes)) and word in str(v)[:100000]:
            print(v)
### coroutine_frame
async def c(): pass
x = c()
print(x.cr_frame.f_builtins['open']('@CANARY@').read())
### import_os control
import os
print(os.environ)
### import_subprocess control
import subprocess
print(subprocess.run(['cat', '@CANARY@'], capture_output=True).stdout)
### import_dunder
print(__import__('os').popen('cat @CANARY@').read())
### import_importlib
import importlib
print(importlib.import_module('o' + 's').popen('cat @CANARY@').read())
### import_loader_data control
from importlib.machinery import SourceFileLoader
print(SourceFileLoader('x', '@CANARY@').get_data('@CANARY@'))
### import_hook
import sys
class Hook:
    def find_spec(self, *a): return None
sys.meta_path.insert(0, Hook())
sys.path.insert(0, '@FOLDER@')
import canary
### import_runpy
import runpy
print(runpy.run_path('@CANARY@'))
### import_zip
import zipimport
zipimport.zipimporter('@CANARY@')
### import_extension
import importlib.machinery as m, importlib.util as u
l = m.ExtensionFileLoader('x', '@CANARY@')
u.module_from_spec(u.spec_from_loader('x', l))
### json_codecs control
import json
print(json.codecs.open('@CANARY@').read())
### datetime_sys
import datetime
print(datetime.sys.modules['os'].environ)
### re_enum_sys
import re
print(re.enum.sys.modules['posix'].listdir('/root'))
### random_os
import random
print(random._os.popen('id').read())
### statistics_sys
import statistics
print(statistics.sys.modules['posix'].system('id > @TARGET@'))
### eval_import
print(eval('__import__("os").popen("cat @CANARY@").read()'))
### exec_import
exec('import os; os.system("id > @TARGET@")')
### compile_code
exec(compile('print(open("@CANARY@").read())', 'x', 'exec'))
### builtins_item
names = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
print(names['open']('@CANARY@').read())
### globals_walk
print(globals()['__builtins__'].__dict__['open']('@CANARY@').read())
### breakpoint_pdb
breakpoint()
### pickle_reduce control
import pickle
print(pickle.loads(b"cposix\nsystem\n(S'cat @CANARY@ > @TARGET@'\ntR."))
### marshal_code
import marshal
exec(marshal.loads(marshal.dumps(compile('print(open("@CANARY@").read())', 'x', 'exec'))))
### bad_bytecode
import types
code = (lambda: 0).__code__
exec(code.replace(co_code=bytes([100, 255, 116, 255, 131, 200, 83, 0] * 50), co_consts=()))
### bad_bytecode_stack
def f(): return 1
f.__code__ = f.__code__.replace(co_code=b'\x01\x00' * 400 + b'S\x00', co_stacksize=1)
f()
### loop
while True: pass
### loop_suppressing
while True:
    try:
        while True: pass
    except BaseException: pass
### loop_ignoring_signals
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except Exception: pass
while True: pass
### big_power
10 ** 10 ** 8
### big_squares
x = 3
for i in range(60): x = x * x
### big_shift
1 << (1 << 40)
### big_text
str(7 ** 10 ** 7)
### text_multiply
'a' * 10 ** 10
### list_multiply
[0] * 10 ** 10
### list_bomb
x = []
while True: x.append('a' * 1000)
### dict_bomb
d = {}
i = 0
while True:
    d[i] = [i] * 1000
    i += 1
### bytes_bomb
bytearray(10 ** 11)
### tuple_doubling
t = (1,)
while True: t = t + t
### set_bomb
set(range(10 ** 9))
### generator_bomb
sum(x * y for x in range(10 ** 6) for y in range(10 ** 6))
### product_bomb
import itertools
list(itertools.product(range(10 ** 4), repeat=3))
### format_width
'{:>10000000000}'.format(1)
### percent_width
'%10000000000d' % 1
### repr_bomb
x = 'a' * 1000
for i in range(40): x = [x, x]
print(x)
### numpy_bomb
import numpy
numpy.ones((10 ** 6, 10 ** 6))
### numpy_endless
import numpy
a = numpy.ones((5000, 2000))
while True: a = a @ a.T @ a
### pandas_bomb
import pandas
pandas.DataFrame({'a': range(10 ** 5)}).merge(pandas.DataFrame({'b': range(10 ** 5)}), how='cross')
### recursion
def f(): return f()
f()
### recursion_limit
import sys
sys.setrecursionlimit(10 ** 8)
def f(n): return [f(n + 1)]
f(0)
### recursion_repr
x = []
for i in range(10 ** 5): x = [x]
print(x)
### nesting_brackets
"""
    + "[" * 5000
    + "]" * 5000
    + r"""
### nesting_eval
eval('(' * 100000 + ')' * 100000)
### nesting_unary
eval('-' * 200000 + '1')
### nesting_blocks
exec(''.join(' ' * i + 'if 1:\n' for i in range(99)) + ' ' * 99 + 'pass')
### regex_backtracking
import re
re.match('(a+)+$', 'a' * 5000 + 'b')
while True: pass
### regex_repeat
import re
re.compile('(?:' * 100 + 'a' + '{1,100})' * 100).match('a' * 10 ** 5)
### sleep_time
import time
time.sleep(10 ** 6)
while True: time.sleep(1)
### sleep_select
import select
select.select([], [], [], 10 ** 6)
### sleep_event
import threading
threading.Event().wait(10 ** 6)
### flood_print
while True: print('a' * 1000)
### flood_one_line
while True: print('a', end='')
### flood_stderr
import sys
while True: sys.stderr.write('x' * 10 ** 6)
### flood_value
'长' * 10 ** 7
### flood_large_value
'a' * 10 ** 8
### flood_many_values
[[] for _ in range(10 ** 5)]
### flood_error
raise ValueError('x' * 10 ** 8)
### flood_descriptors
import os
while True:
    for n in range(1, 64):
        try: os.write(n, b'x' * 65536)
        except OSError: pass
### forged_frames
import os, struct
for n in range(3, 64):
    for kind in (b'f', b'r', b'v', b'z', b'd'):
        try: os.write(n, struct.pack('>cI', kind, 4) + b'fake')
        except OSError: pass
while True: pass
### forged_length
import os
for n in range(3, 64):
    try: os.write(n, b'o\xff\xff\xff\xff' + b'x' * 1000)
    except OSError: pass
### forged_done_and_stay
import os
for n in range(3, 64):
    try: os.write(n, b'd\x00\x00\x00\x00')
    except OSError: pass
while True: pass
### stdin_input
print(input())
### stdin_read
import sys, os
print(sys.stdin.read())
print(os.read(0, 1000))
### error_in_str
class E(Exception):
    def __str__(self): return self.args[0]['x']
raise E(1)
### error_base
raise BaseException(open)
### exit_now
import sys
sys.exit(3)
### exit_hard
import os
os._exit(0)
### exit_atexit
import atexit, os
atexit.register(lambda: os.system('id > @TARGET@'))
### finalizer
import os
class A:
    def __del__(self): os.system('id > @TARGET@')
a = A()
### settrace
import sys
sys.settrace(lambda *a: print(a[0].f_globals))
sys.setprofile(lambda *a: None)
def f(): pass
f()
### patch_runtime
import builtins, sys, os
builtins.isinstance = lambda *a: True
builtins.str = builtins.repr = None
sys.stdout = None
os.write = os._exit = None
sys.modules.clear()
1 + 1
### threads
import threading
for i in range(200):
    threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()
### threads_pool
from concurrent.futures import ThreadPoolExecutor
print(list(ThreadPoolExecutor(50).map(abs, range(100))))
"""
)
