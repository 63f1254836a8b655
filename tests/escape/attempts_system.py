"""Attempts on files, processes, signals, the network and the kernel. See ``attempts``."""

SYSTEM_ATTEMPTS = r"""
### read_canary control
print(open('@CANARY@').read())
### read_passwd control
print(open('/etc/passwd').read())
### read_pathlib
from pathlib import Path
print(Path('@CANARY@').read_text(), list(Path('@FOLDER@').iterdir()))
### read_os_open control
import os
print(os.read(os.open('@CANARY@', os.O_RDONLY), 1000))
### read_path_fd
import os
d = os.open('@FOLDER@', os.O_PATH)
print(os.read(os.open('canary', 0, dir_fd=d), 1000))
### read_dotdot
import os, sys
print(open(os.path.dirname(os.__file__) + '/../../../../../../../..' + '@CANARY@').read())
### read_chdir
import os
os.chdir('@FOLDER@')
print(open('canary').read())
### read_linecache control
import linecache
print(linecache.getline('@CANARY@', 1))
### read_fileinput
import fileinput
print(list(fileinput.input('@CANARY@')))
### read_mmap
import mmap
with open('@CANARY@') as f: print(mmap.mmap(f.fileno(), 0, prot=1)[:])
### read_numpy
import numpy
print(numpy.fromfile('@CANARY@', dtype='S1'), numpy.memmap('@CANARY@', dtype='S1', mode='r'))
### read_pandas control
import pandas
print(list(pandas.read_csv('@CANARY@').columns))
### read_sqlite
import sqlite3
print(sqlite3.connect('@FOLDER@/company.db').execute('select * from secrets').fetchall())
### read_symlink
import os
os.symlink('@CANARY@', '@TARGET@')
print(open('@TARGET@').read())
### read_listdir control
import os
print(os.listdir('@FOLDER@'), [f.name for f in os.scandir('@FOLDER@')])
### read_glob
import glob
print(glob.glob('@FOLDER@/*'))
### read_pwd
import pwd
print('\n'.join(':'.join(map(str, p)) for p in pwd.getpwall()))
### read_sendfile
import os
r, w = os.pipe()
os.sendfile(w, os.open('@CANARY@', 0), 0, 100)
print(os.read(r, 100))
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
### write_open control
open('@TARGET@', 'w').write('x')
### write_append control
open('@CANARY@', 'a').write('x')
### write_os control
import os
os.write(os.open('@TARGET@', os.O_WRONLY | os.O_CREAT), b'x')
### write_truncate control
import os
os.truncate('@CANARY@', 3)
### write_unlink control
import os
os.unlink('@CANARY@')
### write_rename
import os
os.rename('@CANARY@', '@TARGET@')
### write_link
import os
os.link('@CANARY@', '@TARGET@')
### write_mkdir
import os
os.mkdir('@TARGET@')
### write_fifo
import os
os.mkfifo('@TARGET@')
### write_chmod control
import os
os.chmod('@CANARY@', 0o777)
### write_utime
import os
os.utime('@CANARY@', (1, 1))
### write_copy
import shutil
shutil.copy('@CANARY@', '@TARGET@')
### write_rmtree
import shutil
shutil.rmtree('@FOLDER@')
### write_tempfile
import tempfile
tempfile.NamedTemporaryFile(delete=False, dir='@FOLDER@').write(b'x')
### write_logging
import logging
logging.basicConfig(filename='@TARGET@')
logging.error('x')
### write_sqlite
import sqlite3
sqlite3.connect('@TARGET@').execute('create table t (a)')
### write_numpy
import numpy
numpy.save('@TARGET@', numpy.ones(3))
### write_pandas
import pandas
pandas.DataFrame({'a': [1]}).to_csv('@TARGET@')
### write_prefix
import sys
for p in (sys.prefix, sys.base_prefix):
    try: open(p + '/hutong-escape', 'w').write('x')
    except OSError: pass
### write_stdlib
import os
open(os.path.dirname(os.__file__) + '/hutong-escape', 'w').write('x')
### write_shm control
open('/dev/shm/hutong-escape', 'w').write('x')
### write_shared_memory
from multiprocessing import shared_memory
shared_memory.SharedMemory('hutong-escape', True, 1000)
### write_disk_fill
f = open('@TARGET@', 'wb')
while True: f.write(bytes(10 ** 6))
### write_tmpfile_flag
import os
fd = os.open('@FOLDER@', os.O_TMPFILE | os.O_RDWR)
os.link(f'/proc/self/fd/{fd}', '@TARGET@')
### net_tcp control
import socket
socket.create_connection(('127.0.0.1', @TCP@), 1).send(b'x')
### net_udp control
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))
### net_unix control
import socket
socket.socket(socket.AF_UNIX).connect('@UNIX@')
### net_abstract control
import socket
socket.socket(socket.AF_UNIX).connect('\0@ABSTRACT@')
### net_urllib
import urllib.request
urllib.request.urlopen('http://127.0.0.1:@TCP@/', timeout=1)
### net_http
import http.client
http.client.HTTPConnection('127.0.0.1', @TCP@, timeout=1).request('GET', '/')
### net_asyncio
import asyncio
asyncio.run(asyncio.open_connection('127.0.0.1', @TCP@))
### net_pandas
import pandas
pandas.read_csv('http://127.0.0.1:@TCP@/')
### net_dns
import socket
socket.getaddrinfo('hutong-escape.example', 80)
socket.create_connection(('localhost', @TCP@), 1)
### net_inherited
import socket
for n in range(0, 64):
    try:
        s = socket.socket(fileno=n)
        s.connect(('127.0.0.1', @TCP@))
        s.sendto(b'x', ('127.0.0.1', @UDP@))
    except OSError: pass
### net_pass_descriptor
import socket, os
for n in range(3, 64):
    try: socket.send_fds(socket.socket(fileno=n), [b'r'], [0])
    except OSError: pass
### net_raw_syscall
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.socket(2, 1, 0)
address = (2).to_bytes(2, 'little') + (@TCP@).to_bytes(2, 'big') + bytes([127, 0, 0, 1]) + bytes(8)
print(fd, libc.connect(fd, address, 16), ctypes.get_errno())
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
### kernel_io_uring
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
params = (ctypes.c_uint32 * 32)()
fd = libc.syscall(425, 8, params)
if fd >= 0: open('@TARGET@', 'w')
print(fd, ctypes.get_errno())
### kernel_openat2
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(os.O_WRONLY | os.O_CREAT, 0o600, 0)
print(libc.syscall(437, -100, b'@TARGET@', how, 24), ctypes.get_errno())
### kernel_openat
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.open(b'@CANARY@', 0)
buf = ctypes.create_string_buffer(200)
libc.read(fd, buf, 200)
print(fd, buf.value, ctypes.get_errno(), libc.open(b'@TARGET@', 0o101, 0o600))
### kernel_handle
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
h = (ctypes.c_uint32 * 40)(128)
m = ctypes.c_int()
print(libc.name_to_handle_at(-100, b'@CANARY@', h, ctypes.byref(m), 0))
fd = libc.open_by_handle_at(-100, h, 0)
buf = ctypes.create_string_buffer(200)
libc.read(fd, buf, 200)
print(fd, buf.value)
### kernel_mount
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b'none', b'@FOLDER@', b'tmpfs', 0, None), ctypes.get_errno())
### kernel_unshare
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000 | 0x20000 | 0x40000000), libc.setns(3, 0), ctypes.get_errno())
print(open('@CANARY@').read())
### kernel_chroot
import os
os.chroot('@FOLDER@')
print(open('/canary').read())
### kernel_setuid
import os
os.setuid(0)
os.setgroups([])
print(open('@CANARY@').read())
### kernel_rlimits
import resource
for n in range(16):
    try: resource.setrlimit(n, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError): pass
print(len('a' * (3 << 30)))
### kernel_rlimits_asker
import resource
resource.prlimit(@PARENT@, resource.RLIMIT_CORE, (0, 0))
resource.prlimit(@PARENT@, resource.RLIMIT_NOFILE, (77, 77))
### kernel_scheduler_asker
import os
os.setpriority(os.PRIO_PROCESS, @PARENT@, 7)
os.sched_setaffinity(@PARENT@, {0})
### kernel_keyring
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(248, b'user', b'hutong', b'x', 1, -4), ctypes.get_errno())
### kernel_bpf
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (321, 298, 323, 313, 175, 169, 246, 304, 438, 440, 434, 451):
    print(number, libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
### kernel_seccomp_again
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
allow = struct.pack('HBBI', 6, 0, 0, 0x7fff0000)
b = ctypes.create_string_buffer(allow, 8)
print(libc.prctl(22, 2, struct.pack('@HP', 1, ctypes.addressof(b))), ctypes.get_errno())
print(open('@CANARY@').read())
### kernel_prctl
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.prctl(1, 0, 0, 0, 0), libc.prctl(36, 1, 0, 0, 0), libc.prctl(4, 1, 0, 0, 0))
### kernel_shared_memory
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
n = libc.shmget(0x68747467, 4096, 0o1600)
if n >= 0:
    libc.shmctl(n, 0, 0)
    open('@TARGET@', 'w')
print(n, ctypes.get_errno())
### kernel_int80
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
a = libc.mmap(None, 4096, 7, 0x22 | 0x40, -1, 0)
path = b'@CANARY@\0'
ctypes.memmove(a + 256, path, len(path))
code = b'\x53\xb8\x05\x00\x00\x00\xbb' + (a + 256).to_bytes(4, 'little')
code += b'\x31\xc9\x31\xd2\xcd\x80\x5b\xc3'
ctypes.memmove(a, code, len(code))
fd = ctypes.CFUNCTYPE(ctypes.c_int)(a)()
print(fd, os.read(fd, 1000))
### kernel_x32
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(0x40000000 + 2, b'@CANARY@', 0, 0)
buf = ctypes.create_string_buffer(200)
libc.read(fd, buf, 200)
print(fd, buf.value, ctypes.get_errno())
### kernel_null_pointer
import ctypes
ctypes.string_at(0)
### kernel_overwrite
import ctypes
ctypes.memset(id(int), 0, 4096)
ctypes.memset(id(None) - 65536, 255, 1 << 20)
### kernel_mmap_bomb
import mmap
x = [mmap.mmap(-1, 1 << 28) for _ in range(100)]
for m in x: m.write(b'x' * (1 << 28))
### kernel_descriptors
import os
x = []
while True: x.append(os.pipe())
### kernel_dup_flood
import os
while True: os.dup(0)
"""
