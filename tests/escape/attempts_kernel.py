"""Attempts on the network and on the kernel's other interfaces. See ``attempts``."""

KERNEL_ATTEMPTS = r"""
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
