//! What comes from the kernel, checked for length.

use rustix::fs::OFlags;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::abi::{
    BatchForgetIn, CopyIn, CreateIn, ForgetIn, ForgetOne, FsyncIn, IOCTL_UNRESTRICTED, InHeader,
    InitIn, IoctlIn, LinkIn, LseekIn, MkDirIn, MkNodIn, OpenIn, ReadIn, Rename2In, RenameIn,
    RingHeader, SetAttrIn, WriteIn, opcode, setattr,
};
use super::budget::LARGEST;
use crate::control;
use crate::nodes::NodeId;
use crate::serve::Caller;

/// A request and who makes it.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// By which the answer names it.
    pub unique: u64,
    /// What it is about, or the directory of the name that it is about.
    pub node: NodeId,
    pub caller: Caller,
    /// [`Errno::INVAL`] if it is cut off, or too long.
    pub call: Result<Call<'a>, Errno>,
}

/// What is asked for. Names have no zeros; the kernel has checked them. No more bytes are asked for
/// than a request may have.
#[derive(Debug)]
pub(super) enum Call<'a> {
    Init {
        offer: InitIn,
        /// The second 32 capabilities.
        more: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    /// Not answered.
    Forget {
        lookups: u64,
    },
    /// Not answered.
    BatchForget(Vec<ForgetOne>),
    GetAttr,
    SetAttr(SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
    },
    /// The kernel sends a name, which means nothing.
    CreateNameless {
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to_dir: NodeId,
        to_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Release,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: u32,
    },
    Copy {
        offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        /// The answer is a number of 64 bits.
        wide: bool,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    Fsync,
    ReadDir {
        cookie: u64,
        size: u32,
    },
    ReadDirPlus {
        cookie: u64,
        size: u32,
    },
    StatFs,
    Ioctl {
        command: u32,
        input: &'a [u8],
        room: usize,
    },
    SyncFs,
    Destroy,
    /// What we do not do, as far as we know what it is.
    Unknown,
}

impl<'a> Request<'a> {
    /// Reads what has come in one piece from `/dev/fuse`; `None` if it is so little that nobody could
    /// be answered.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
        let whole = header.length as usize == bytes.len();
        Some(Self::new(&header, whole.then_some(Arguments { head: None, rest })))
    }

    /// Reads what has come in an entry of a ring.
    pub fn from_ring(entry: &'a RingHeader, payload: &'a [u8]) -> Self {
        let head = Some(entry.arguments.as_bytes());
        let rest = payload.get(..entry.entry.payload_size as usize);
        Self::new(&entry.request(), rest.map(|rest| Arguments { head, rest }))
    }

    /// Whether the answer may have to wait for the device for long, or for what others do.
    pub fn is_long(&self) -> bool {
        match self.call {
            Ok(Call::Fsync | Call::SyncFs) => true,
            Ok(Call::Ioctl { command, .. }) => command == control::NUMBER,
            // O_SYNC is O_DSYNC and one more bit.
            Ok(Call::Write { flags, .. }) => {
                OFlags::from_bits_retain(flags).contains(OFlags::DSYNC)
            }
            _ => false,
        }
    }

    /// Whether it leaves everything as it is, so that it can be asked again.
    pub fn changes_nothing(&self) -> bool {
        matches!(
            self.call,
            Ok(Call::Lookup { .. }
                | Call::GetAttr
                | Call::ReadLink
                | Call::Read { .. }
                | Call::Lseek { .. }
                | Call::ReadDir { .. }
                | Call::ReadDirPlus { .. })
        )
    }

    /// Whether it changes the volume.
    pub fn changes(&self) -> bool {
        matches!(
            self.call,
            Ok(Call::SetAttr(_)
                | Call::Symlink { .. }
                | Call::MkNod { .. }
                | Call::MkDir { .. }
                | Call::Create { .. }
                | Call::CreateNameless { .. }
                | Call::Unlink { .. }
                | Call::RmDir { .. }
                | Call::Rename { .. }
                | Call::Link { .. }
                | Call::Write { .. }
                | Call::Copy { .. })
        )
    }

    /// The file that gets another size, or none.
    pub fn shortened(&self) -> Option<NodeId> {
        match self.call {
            Ok(Call::SetAttr(SetAttrIn { valid, .. })) if valid & setattr::SIZE != 0 => {
                Some(self.node)
            }
            _ => None,
        }
    }

    /// How many bytes are to be read from the device, at most.
    pub fn read_size(&self) -> u64 {
        match self.call {
            Ok(Call::Read { size, .. }) => u64::from(size),
            Ok(Call::Copy { length, .. }) => length,
            _ => 0,
        }
    }

    fn new(header: &InHeader, arguments: Option<Arguments<'a>>) -> Self {
        // Extensions would come last; we ask for none.
        Self {
            unique: header.unique,
            node: NodeId(header.node),
            caller: Caller { uid: header.uid, gid: header.gid },
            call: arguments.and_then(|it| it.call(header.opcode)).ok_or(Errno::INVAL),
        }
    }
}

/// What is left of the arguments.
struct Arguments<'a> {
    /// Where the structure of the opcode is, if it does not come before the rest.
    head: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Option<T> {
        if let Some(head) = self.head.take() {
            return T::read_from_prefix(head).ok().map(|(value, _)| value);
        }
        let (value, rest) = T::read_from_prefix(self.rest).ok()?;
        self.rest = rest;
        Some(value)
    }

    /// Everything up to a zero.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(name)
    }

    fn bytes(&mut self, count: u32) -> Option<&'a [u8]> {
        self.rest.get(..count as usize)
    }

    /// The offset and the number of bytes to read.
    fn reading(&mut self) -> Option<(u64, u32)> {
        let ReadIn { offset, size, .. } = self.take()?;
        Some((offset, size.min(LARGEST)))
    }

    fn call(mut self, code: u32) -> Option<Call<'a>> {
        Some(match code {
            opcode::INIT => Call::Init { offer: self.take()?, more: self.take().unwrap_or(0) },
            opcode::LOOKUP => Call::Lookup { name: self.name()? },
            opcode::FORGET => Call::Forget { lookups: self.take::<ForgetIn>()?.lookups },
            opcode::BATCH_FORGET => {
                let count = self.take::<BatchForgetIn>()?.count;
                Call::BatchForget((0..count).map_while(|_| self.take()).collect())
            }
            opcode::GETATTR => Call::GetAttr,
            opcode::SETATTR => Call::SetAttr(self.take()?),
            opcode::READLINK => Call::ReadLink,
            opcode::SYMLINK => Call::Symlink { name: self.name()?, target: self.name()? },
            opcode::MKNOD => {
                let MkNodIn { mode, rdev, .. } = self.take()?;
                Call::MkNod { name: self.name()?, mode, rdev }
            }
            opcode::MKDIR => {
                let MkDirIn { mode, .. } = self.take()?;
                Call::MkDir { name: self.name()?, mode }
            }
            opcode::CREATE => {
                let CreateIn { mode, .. } = self.take()?;
                Call::Create { name: self.name()?, mode }
            }
            opcode::TMPFILE => {
                let CreateIn { mode, .. } = self.take()?;
                Call::CreateNameless { mode }
            }
            opcode::UNLINK => Call::Unlink { name: self.name()? },
            opcode::RMDIR => Call::RmDir { name: self.name()? },
            opcode::RENAME => {
                let RenameIn { to_dir } = self.take()?;
                self.rename(to_dir, 0)?
            }
            opcode::RENAME2 => {
                let Rename2In { to_dir, flags, .. } = self.take()?;
                self.rename(to_dir, flags)?
            }
            opcode::LINK => {
                let LinkIn { node } = self.take()?;
                Call::Link { node: NodeId(node), name: self.name()? }
            }
            opcode::OPEN => {
                let OpenIn { flags, .. } = self.take()?;
                Call::Open { flags }
            }
            opcode::RELEASE => Call::Release,
            opcode::READ => {
                let (offset, size) = self.reading()?;
                Call::Read { offset, size }
            }
            opcode::WRITE => {
                let WriteIn { offset, size, write_flags, flags, .. } = self.take()?;
                Call::Write { offset, data: self.bytes(size)?, write_flags, flags }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let CopyIn { offset, to_node, to_offset, length, .. } = self.take()?;
                let wide = code == opcode::COPY_FILE_RANGE_64;
                Call::Copy { offset, to: NodeId(to_node), to_offset, length, wide }
            }
            opcode::LSEEK => {
                let LseekIn { offset, whence, .. } = self.take()?;
                Call::Lseek { offset, whence }
            }
            opcode::FSYNC | opcode::FSYNCDIR => {
                let FsyncIn { .. } = self.take()?;
                Call::Fsync
            }
            opcode::READDIR => {
                let (cookie, size) = self.reading()?;
                Call::ReadDir { cookie, size }
            }
            opcode::READDIRPLUS => {
                let (cookie, size) = self.reading()?;
                Call::ReadDirPlus { cookie, size }
            }
            opcode::STATFS => Call::StatFs,
            opcode::IOCTL => {
                let IoctlIn { flags, command, in_size, out_size, .. } = self.take()?;
                if flags & IOCTL_UNRESTRICTED != 0 {
                    return Some(Call::Unknown);
                }
                let input = self.bytes(in_size)?;
                Call::Ioctl { command, input, room: out_size.min(LARGEST) as usize }
            }
            opcode::SYNCFS => Call::SyncFs,
            opcode::DESTROY => Call::Destroy,
            _ => Call::Unknown,
        })
    }

    fn rename(&mut self, to_dir: u64, flags: u32) -> Option<Call<'a>> {
        let (name, to_name) = (self.name()?, self.name()?);
        Some(Call::Rename { name, to_dir: NodeId(to_dir), to_name, flags })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(code: u32, arguments: &[u8]) -> Vec<u8> {
        let length = (size_of::<InHeader>() + arguments.len()) as u32;
        let header = InHeader { length, opcode: code, unique: 7, node: 9, ..InHeader::default() };
        [header.as_bytes(), arguments].concat()
    }

    #[test]
    fn a_request_is_read_field_by_field() {
        let arguments = Rename2In { to_dir: 5, flags: 1, padding: 0 };
        let bytes = request(opcode::RENAME2, &[arguments.as_bytes(), b"old\0new\0"].concat());
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!((parsed.unique, parsed.node), (7, NodeId(9)));
        let Ok(Call::Rename { name: b"old", to_dir, to_name: b"new", flags: 1 }) = parsed.call
        else {
            panic!("{parsed:?}")
        };
        assert_eq!(to_dir, NodeId(5));
    }

    /// A request as it lies in an entry of a ring that has `size` bytes of payload.
    fn entry(code: u32, arguments: &[u8], size: usize) -> RingHeader {
        let mut entry = RingHeader::default();
        let header = InHeader { opcode: code, unique: 7, node: 9, ..InHeader::default() };
        entry.in_out.as_mut_bytes()[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        entry.arguments.as_mut_bytes()[..arguments.len()].copy_from_slice(arguments);
        entry.entry.payload_size = size as u32;
        entry
    }

    #[test]
    fn a_request_in_a_ring_has_its_parts_in_their_places() {
        let arguments = Rename2In { to_dir: 5, flags: 1, padding: 0 };
        let entry_of = entry(opcode::RENAME2, arguments.as_bytes(), 8);
        let parsed = Request::from_ring(&entry_of, b"old\0new\0 and what an older one has left");
        assert_eq!((parsed.unique, parsed.node), (7, NodeId(9)));
        let Ok(Call::Rename { name: b"old", to_dir, to_name: b"new", flags: 1 }) = parsed.call
        else {
            panic!("{parsed:?}")
        };
        assert_eq!(to_dir, NodeId(5));
        let lookup = entry(opcode::LOOKUP, b"", 5);
        let Ok(Call::Lookup { name: b"name" }) = Request::from_ring(&lookup, b"name\0").call else {
            panic!("a name without a structure before it")
        };
    }

    #[test]
    fn what_does_not_fit_into_an_entry_or_is_unknown_is_no_call() {
        let write = WriteIn { size: 4, ..WriteIn::default() };
        let refused = |entry: &RingHeader, payload: &[u8]| {
            let parsed = Request::from_ring(entry, payload);
            assert_eq!(parsed.unique, 7, "it can be answered");
            parsed.call.err() == Some(Errno::INVAL)
        };
        assert!(refused(&entry(opcode::WRITE, write.as_bytes(), 3), b"abcd"), "a byte is missing");
        assert!(refused(&entry(opcode::WRITE, write.as_bytes(), 5), b"abcd"), "too long");
        assert!(refused(&entry(opcode::LOOKUP, b"", 4), b"name\0"), "the zero is missing");
        assert!(!refused(&entry(opcode::WRITE, write.as_bytes(), 4), b"abcd"));
    }

    #[test]
    fn what_is_cut_off_is_no_call_but_can_be_answered() {
        let refused = |bytes: &[u8]| {
            let parsed = Request::parse(bytes).unwrap();
            assert_eq!(parsed.unique, 7);
            parsed.call.err() == Some(Errno::INVAL)
        };
        let write = WriteIn { size: 4, ..WriteIn::default() };
        let bytes = request(opcode::WRITE, &[write.as_bytes(), b"abc"].concat());
        assert!(refused(&bytes), "a byte is missing");
        assert!(refused(&request(opcode::LOOKUP, b"name")), "the zero is missing");
        assert!(refused(&request(opcode::SETATTR, b"")));
        assert!(refused(&request(opcode::STATFS, b"more")[..40]), "the header's length is wrong");
        assert!(Request::parse(b"short").is_none(), "nobody knows who asks");
    }

    /// What lies in an entry may be left from another request.
    #[test]
    fn whatever_lies_in_an_entry_can_be_answered() {
        let payload: Vec<u8> = (0..4096).map(|at| (at % 251) as u8).collect();
        for (code, fill) in (0..64).chain([4711, u32::MAX]).flat_map(|it| [(it, 0), (it, 0xff)]) {
            for (length, size) in [(0, 0), (1, 7), (4096, 4096), (4096, 0), (0, usize::MAX)] {
                let mut entry = entry(code, &[], size);
                entry.arguments.as_mut_bytes().fill(fill);
                let parsed = Request::from_ring(&entry, &payload[..length]);
                assert_eq!(parsed.unique, 7, "{parsed:?}");
                assert!(size <= length || parsed.call.is_err(), "{parsed:?}");
            }
        }
    }

    #[test]
    fn what_is_unknown_is_a_call_that_says_so() {
        let bytes = request(4711, b"");
        assert!(matches!(Request::parse(&bytes).unwrap().call, Ok(Call::Unknown)));
        let entry = entry(4711, b"", 0);
        assert!(matches!(Request::from_ring(&entry, b"").call, Ok(Call::Unknown)));
    }

    #[test]
    fn nobody_gets_more_than_was_agreed_on() {
        let read = ReadIn { size: u32::MAX, ..ReadIn::default() };
        for code in [opcode::READ, opcode::READDIR, opcode::READDIRPLUS] {
            let (bytes, entry) = (request(code, read.as_bytes()), entry(code, read.as_bytes(), 0));
            for parsed in [Request::parse(&bytes).unwrap(), Request::from_ring(&entry, b"")] {
                let (Ok(Call::Read { size, .. })
                | Ok(Call::ReadDir { size, .. })
                | Ok(Call::ReadDirPlus { size, .. })) = parsed.call
                else {
                    panic!("{parsed:?}")
                };
                assert_eq!(size, LARGEST);
            }
        }
    }
}
