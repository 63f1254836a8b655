"""Attempts on processes: their environment and memory, new ones, signals. See ``attempts``."""

PROCESS_ATTEMPTS = r"""
### environ_self
print(open('/proc/self/environ').read())
### environ_parent
import os
print(open(f'/proc/{os.getppid()}/environ').read())
### environ_asker control
print(open('/proc/@PARENT@/environ').read())
### environ_getenv control
import os
print(os.getenv('HUTONG_ESCAPE_SECRET'), os.environb)
### environ_symbol
import ctypes
libc = ctypes.CDLL(None)
p = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
i = 0
while p[i]:
    print(p[i])
    i += 1
### environ_argv
import sys
print(sys.argv, sys.orig_argv)
print(open('/proc/@PARENT@/cmdline').read())
### memory_self
import re
word = b'hutong-' + b'secret-'
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as mem:
    for line in maps:
        a, b = (int(x, 16) for x in line.split()[0].split('-'))
        mem.seek(a)
        for found in re.findall(word + b'[0-9a-z-]+', mem.read(b - a)): print(found)
### memory_heap_scan
import ctypes, re
word = b'hutong-' + b'secret-'
start = id(object()) & ~0xfffff
for a in range(start, start + 0x400000, 0x1000):
    for found in re.findall(word + b'[0-9a-z-]+', ctypes.string_at(a, 0x1000)): print(found)
### memory_asker
import re
word = b'hutong-' + b'secret-'
with open('/proc/@PARENT@/maps') as maps, open('/proc/@PARENT@/mem', 'rb') as mem:
    for line in maps:
        a, b = (int(x, 16) for x in line.split()[0].split('-'))
        mem.seek(a)
        for found in re.findall(word + b'[0-9a-z-]+', mem.read(b - a)): print(found)
### memory_vm_readv
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(4096)
iov = (ctypes.c_size_t * 2)(ctypes.addressof(buf), 4096)
rem = (ctypes.c_size_t * 2)(0x400000, 4096)
if libc.process_vm_readv(@PARENT@, iov, 1, rem, 1, 0) > 0: open('@TARGET@', 'w')
print(libc.process_vm_readv(@PARENT@, iov, 1, rem, 1, 0), ctypes.get_errno())
### memory_ptrace
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, @PARENT@, 0, 0), ctypes.get_errno())
### process_fork
import os
if os.fork() == 0:
    while True: pass
### process_fork_bomb
import os
while True: os.fork()
### process_double_fork
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
    os._exit(0)
### process_spawn
import os
os.posix_spawn('/bin/sh', ['sh', '-c', 'id > @TARGET@; sleep 60'], {})
### process_exec
import os
os.execv('/bin/sh', ['sh', '-c', 'id > @TARGET@; sleep 60'])
### process_system control
import os
os.system('id > @TARGET@')
### process_multiprocessing
import multiprocessing
multiprocessing.Process(target=print).start()
### process_pty
import pty
pty.fork()
### process_vfork
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(58), libc.syscall(57), ctypes.get_errno())
while True: pass
### process_clone
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
args = (ctypes.c_uint64 * 11)()
args[4] = 17
print(libc.syscall(435, args, 88), libc.syscall(56, 17, 0, 0, 0, 0), ctypes.get_errno())
while True: pass
### process_memfd_exec
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.memfd_create(b'x', 0)
os.write(fd, b'#!/bin/sh\nid > @TARGET@\n')
libc.fexecve(fd, (ctypes.c_char_p * 2)(b'x', None), (ctypes.c_char_p * 1)(None))
### process_ld_loader
import os
os.execv('/lib64/ld-linux-x86-64.so.2', ['ld', '/bin/sh', '-c', 'id > @TARGET@'])
### signal_asker control
import os
os.kill(@PARENT@, 10)
### signal_term
import os, signal
os.kill(@PARENT@, signal.SIGTERM)
### signal_zygote
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
### signal_everyone
import os
os.kill(-1, 10)
os.killpg(0, 10)
### signal_tgkill
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(234, @PARENT@, @PARENT@, 10), libc.syscall(200, os.getppid(), 9))
### signal_queue
import ctypes
info = (ctypes.c_int * 32)(10, 0, -1)
print(ctypes.CDLL(None).syscall(129, @PARENT@, 10, info))
### signal_pidfd control
import os, signal
signal.pidfd_send_signal(os.pidfd_open(@PARENT@), 10)
### signal_setown
import fcntl, os
for n in range(3, 64):
    try:
        fcntl.fcntl(n, fcntl.F_SETOWN, @PARENT@)
        fcntl.fcntl(n, 10, 10)
        fcntl.fcntl(n, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    except OSError: pass
while True: pass
### signal_timer
import signal
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.signal(signal.SIGALRM, lambda *a: print('x'))
while True: pass
### signal_self
import signal
signal.raise_signal(signal.SIGKILL)
"""
