//! What each request means for the engine.

use nilfs_engine::{DeviceCode, Error, NewInode, RenameMode, Seek, SetAttr, StatFs};
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::{Operations, unless_damaged};
use crate::ioctl::{self, InodeIoctl};
use crate::nodes::NodeId;
use crate::serve::{AddEntry, Answer, Caller, Found, Given, Serve};

/// Bytes that a request to copy moves at most: another one gets its turn then.
const COPIED_AT_ONCE: u64 = 8 << 20;

impl Serve for Operations {
    /// The kernel knows neither what is of the past nor what is immutable, so only the process can
    /// refuse to open it for writing. A read-only mount is the kernel's affair.
    fn is_asked_for_opening(&self) -> bool {
        self.writer.is_some()
    }

    fn may_delay_changes(&self, shortened: Option<NodeId>) -> bool {
        let ino = shortened.filter(|node| !node.is_past()).map(NodeId::ino);
        self.synchronous || self.writer.as_ref().is_some_and(|writer| writer.may_delay_changes(ino))
    }

    fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Found> {
        let found = match dir.is_past() {
            true => self.past()?.lookup(dir, name),
            false => self.lookup_now(dir.ino(), name),
        };
        match found {
            Err(Error::NotFound) if !self.is_door(dir) => Ok(None),
            found => self.answer_of(dir, found).map(Some),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        match &self.past {
            Some(past) if node.is_past() => past.forget(node, lookups),
            _ => self.files.let_go(node.ino(), lookups),
        }
    }

    fn forget_all(&self) {
        self.files.let_go_of_all();
        // The process may end before the last thread lets go of this.
        self.losses.tell();
        self.damage.end();
    }

    fn attr(&self, node: NodeId) -> Answer<Given> {
        match node.is_past() {
            true => self.answer(self.past()?.attr(node)),
            false => self.answer(self.files.attr(node.ino())).map(Given::present),
        }
    }

    fn set_attr(&self, node: NodeId, changes: &SetAttr) -> Answer<Given> {
        let (writer, inode) = self.changeable(node)?;
        self.changed(writer, &inode, writer.set_attr(&inode, changes)).map(Given::present)
    }

    fn read_link(&self, node: NodeId) -> Answer<Vec<u8>> {
        match node.is_past() {
            true => self.answer(self.past()?.read_link(node)),
            false => self.answer(self.files.read_link(node.ino())),
        }
    }

    fn create(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u16,
        rdev: DeviceCode,
    ) -> Answer<Given> {
        let Caller { uid, gid } = caller;
        let new = NewInode { mode, uid, gid, rdev };
        let (writer, dir) = self.changeable(dir)?;
        self.check_new_name(name)?;
        let made = self.changed(writer, &dir, writer.create(&dir, name, &new))?;
        Ok(Self::give(writer, &made.inode, made.attr))
    }

    fn create_nameless(&self, caller: Caller, dir: NodeId, mode: u16) -> Answer<Given> {
        let Caller { uid, gid } = caller;
        let new = NewInode { mode, uid, gid, rdev: DeviceCode::default() };
        let (writer, dir) = self.changeable(dir)?;
        let made = self.answer(writer.create_nameless(&dir, &new))?;
        Ok(Self::give(writer, &made.inode, made.attr))
    }

    fn symlink(&self, caller: Caller, dir: NodeId, name: &[u8], target: &[u8]) -> Answer<Given> {
        let Caller { uid, gid } = caller;
        let (writer, dir) = self.changeable(dir)?;
        self.check_new_name(name)?;
        let made = writer.symlink(&dir, name, target, uid, gid);
        let made = self.changed(writer, &dir, made)?;
        Ok(Self::give(writer, &made.inode, made.attr))
    }

    fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Answer<Given> {
        match (node.is_past(), dir.is_past()) {
            (true, true) => return Err(Errno::ROFS),
            (past, into_past) if past || into_past => return Err(Errno::XDEV),
            _ => {}
        }
        let (_, dir) = self.changeable(dir)?;
        let (writer, inode) = self.changeable(node)?;
        self.check_new_name(name)?;
        let attr = self.changed(writer, &dir, writer.link(&inode, &dir, name))?;
        Ok(Self::give(writer, &inode, attr))
    }

    fn unlink(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        let (writer, dir) = self.changeable(dir)?;
        let done = self.changed(writer, &dir, writer.unlink(&dir, name));
        done.map_err(|errno| self.kept_door(name, errno))
    }

    fn rmdir(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        let (writer, dir) = self.changeable(dir)?;
        let done = self.changed(writer, &dir, writer.rmdir(&dir, name));
        done.map_err(|errno| self.kept_door(name, errno))
    }

    fn rename(
        &self,
        dir: NodeId,
        name: &[u8],
        to_dir: NodeId,
        to_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        let mode = match RenameFlags::from_bits_retain(flags) {
            none if none.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        if dir.is_past() != to_dir.is_past() {
            return Err(Errno::XDEV);
        }
        let (writer, from) = self.changeable(dir)?;
        let (_, to) = self.changeable(to_dir)?;
        self.check_new_name(to_name)?;
        let renamed = writer.rename(&from, name, &to, to_name, mode);
        let renamed = self.changed(writer, &to, renamed);
        renamed.map_err(|errno| self.kept_door(name, errno))
    }

    fn open(&self, node: NodeId, flags: OFlags) -> Answer<()> {
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Ok(());
        }
        let (writer, inode) = self.changeable(node)?;
        let appends = flags.contains(OFlags::APPEND);
        self.answer(writer.check_opened_for_writing(&inode, appends))
    }

    fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.read_now_or_then(node, offset, buffer)
    }

    fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: Option<OFlags>,
        clear_set_id: bool,
    ) -> Answer<usize> {
        let written = self.write_now(node, offset, data, flags, clear_set_id);
        if let (None, Err(errno)) = (flags, written) {
            self.losses.add(node.ino(), data.len() as u64, errno);
        }
        written
    }

    fn copy(
        &self,
        node: NodeId,
        offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        buffer: &mut [u8],
    ) -> Answer<usize> {
        let length = length.min(COPIED_AT_ONCE) as usize;
        let (writer, target) = self.changeable(to)?;
        let mut copied = 0;
        while copied < length {
            let piece = (length - copied).min(buffer.len());
            let done = self
                .read_now_or_then(node, offset + copied as u64, &mut buffer[..piece])
                .and_then(|read| {
                    let data = &buffer[..read];
                    let at = to_offset + copied as u64;
                    self.answer_of(to, writer.write_some(&target, at, data))
                });
            match done {
                Ok(0) => break,
                Ok(written) => copied += written,
                // What was copied before the error is an answer; the error comes at the next call.
                Err(_) if copied > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        self.changed(writer, &target, Ok(copied))
    }

    fn seek(&self, node: NodeId, offset: u64, whence: u32) -> Answer<u64> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        match node.is_past() {
            true => self.answer(self.past()?.seek(node, offset, what)),
            false => self.answer(self.files.seek(node.ino(), offset, what)),
        }
    }

    fn sync(&self, node: NodeId) -> Answer<()> {
        let synced = match self.changeable(node) {
            Err(Errno::ROFS) if node.is_past() => self.answer(self.past()?.touch(node)),
            // What cannot be changed is durable.
            Err(Errno::ROFS) => Ok(()),
            found => {
                let (writer, inode) = found?;
                self.answer(writer.sync_file(&inode))
            }
        };
        self.renew_doors();
        synced
    }

    fn sync_fs(&self) -> Answer<()> {
        let synced = match &self.writer {
            Some(writer) => self.answer(writer.sync()),
            None => Ok(()),
        };
        self.renew_doors();
        synced
    }

    fn stat_fs(&self, node: NodeId) -> Answer<StatFs> {
        if node.is_past() {
            self.answer(self.past()?.touch(node))?;
        }
        if let Some(writer) = &self.writer {
            self.dispensable.notice_released(writer);
        }
        self.answer(self.files.stat_fs())
    }

    fn list(&self, dir: NodeId, cookie: u64, files: bool, add: &mut AddEntry<'_>) -> Answer<()> {
        // What a door has may be a hundred thousand checkpoints.
        let files = files && !self.is_door(dir);
        let mut cookie = cookie;
        loop {
            let some = self.some_entries(dir, cookie)?;
            let Some(last) = some.last() else { return Ok(()) };
            cookie = last.next;
            for listed in &some {
                // Without its inode, which may be damaged, it is a name all the same.
                let is_file = files && !listed.is_dots();
                let given = match is_file {
                    true => unless_damaged(self.give_listed(dir, listed))?,
                    false => None,
                };
                let file_type = match files {
                    true => listed.file_type.filter(|_| !is_file || given.is_some()),
                    false => unless_damaged(self.type_of(dir, listed))?,
                };
                if !add(&listed.entry(file_type), given.as_ref()) {
                    given.inspect(|given| self.forget(given.node, 1));
                    return Ok(());
                }
            }
        }
    }

    fn ioctl(&self, node: NodeId, command: u32, input: &[u8], room: usize) -> Answer<Vec<u8>> {
        let request = InodeIoctl::parse(command, input).ok_or(Errno::NOTTY)?;
        let attr = self.attr(node)?.attr;
        let set_flags = |flags| {
            let (writer, inode) = self.changeable(node)?;
            let attr = self.changed(writer, &inode, writer.set_flags(&inode, flags))?;
            // The kernel does not expect that it changes the ctime.
            self.kernel.outdate_attributes(node);
            Ok(attr.flags)
        };
        let value = match request {
            InodeIoctl::GetFlags => attr.flags,
            InodeIoctl::GetExtended => ioctl::extended(attr.flags),
            InodeIoctl::GetGeneration => attr.generation,
            InodeIoctl::SetFlags(flags) => set_flags(flags)?,
            InodeIoctl::SetExtended(extended) => {
                let flags = extended.applied_to(attr.flags).ok_or(Errno::OPNOTSUPP)?;
                set_flags(flags)?
            }
        };
        Ok(request.answer(value, room))
    }

    fn message(&self, caller: Caller, message: &[u8]) -> Answer<Vec<u8>> {
        let handler = self.control.as_ref().ok_or(Errno::NOTTY)?;
        let answer = handler(caller, message);
        self.renew_doors();
        Ok(answer)
    }
}
