"""Attempts on files: reading, writing, listing. See ``attempts``."""

FILE_ATTEMPTS = r"""
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
"""
