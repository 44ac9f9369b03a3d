//! The kernel's interface: numbers and structures that travel through `/dev/fuse`, in the byte
//! order of the machine. Only what we use is here; names are those of `linux/fuse.h` without
//! their prefixes.
//!
//! ```text
//! a request:  | InHeader  | arguments of the opcode | names, each with a zero, or data |
//! an answer:  | OutHeader | result of the opcode    | data                             |
//! a notice:   | OutHeader with unique 0 and a code in place of the error | its arguments |
//! ```
//!
//! Through a ring, the parts of a request and of its answer have places of their own:
//!
//! ```text
//! RingHeader:  | InHeader, then OutHeader | arguments of the opcode | RingEntry |
//! the payload: | names or data, then result of the opcode and data              |
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the interface that is spoken here. The kernel's may be newer.
pub(super) const MAJOR: u32 = 7;
/// Linux 5.18: capabilities have 64 bits.
pub(super) const MINOR: u32 = 36;

/// What a request asks for.
pub(super) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    /// Linux 6.18: the answer has 64 bits.
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities of the kernel, in `InitIn::flags` and `InitOut::flags`.
pub(super) mod capability {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const EXPORT_SUPPORT: u32 = 1 << 4;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const IOCTL_DIR: u32 = 1 << 11;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub const WRITEBACK_CACHE: u32 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_SYMLINKS: u32 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u32 = 1 << 25;
    /// Set-id bits are cleared here, and not by the kernel.
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
    /// The second 32 capabilities count.
    pub const INIT_EXT: u32 = 1 << 30;
    /// Among the second 32: requests can come through rings.
    pub const OVER_IO_URING: u32 = 1 << (41 - 32);
}

/// Commands of a ring, about one of its entries.
pub(super) mod ring_command {
    /// Lends the kernel the memory of an entry, and waits for a request to come in it.
    pub const REGISTER: u32 = 1;
    /// Answers the request of an entry, and waits for the next one.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Which fields of [`SetAttrIn`] count.
pub(super) mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    /// Set-id bits go.
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// All that can be changed.
    pub const CHANGES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | CTIME | KILL_SUIDGID;
}

/// `WriteIn::write_flags`: the kernel writes its cache back, for no particular open file.
pub(super) const WRITE_CACHE: u32 = 1 << 0;
/// `WriteIn::write_flags`: the writer must not leave set-id bits to the file.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `IoctlIn::flags`: the argument is an address in the caller's memory.
pub(super) const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// `OpenOut::flags`: what the kernel has cached of the file stays valid.
pub(super) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// `OpenOut::flags`: nobody needs to hear when it is closed by one of those who have it open.
pub(super) const OPEN_NO_FLUSH: u32 = 1 << 5;
/// A notice: what the kernel knows of an inode is not so any more.
pub(super) const NOTICE_INVALID_INODE: i32 = 2;
/// A notice: a name in a directory does not lead where it did.
pub(super) const NOTICE_INVALID_ENTRY: i32 = 3;

macro_rules! structures {
    ($($(#[$about:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(super) struct $name {
                $(pub $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

structures! {
    /// Before each request.
    InHeader: 40 {
        length: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions: u16,
        padding: u16,
    }

    /// Before each answer; the error is a negative errno.
    OutHeader: 16 {
        length: u32,
        error: i32,
        unique: u64,
    }

    /// Newer kernels send the second 32 capabilities after it.
    InitIn: 16 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }

    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_granularity: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        unused: [u32; 6],
    }

    Attr: 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        block_size: u32,
        flags: u32,
    }

    AttrOut: 104 {
        valid: u64,
        valid_ns: u32,
        padding: u32,
        attr: Attr,
    }

    /// Node 0: there is no such name, which may be remembered.
    EntryOut: 128 {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: Attr,
    }

    OpenIn: 8 {
        flags: u32,
        open_flags: u32,
    }

    OpenOut: 16 {
        handle: u64,
        flags: u32,
        backing: u32,
    }

    CreateOut: 144 {
        entry: EntryOut,
        open: OpenOut,
    }

    ForgetIn: 8 {
        lookups: u64,
    }

    BatchForgetIn: 8 {
        count: u32,
        padding: u32,
    }

    ForgetOne: 16 {
        node: u64,
        lookups: u64,
    }

    SetAttrIn: 88 {
        valid: u32,
        padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    /// Then the name.
    MkNodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    /// Then the name.
    MkDirIn: 8 {
        mode: u32,
        umask: u32,
    }

    /// Then both names.
    RenameIn: 8 {
        to_dir: u64,
    }

    /// Then both names.
    Rename2In: 16 {
        to_dir: u64,
        flags: u32,
        padding: u32,
    }

    /// Then the name.
    LinkIn: 8 {
        node: u64,
    }

    /// Then the name.
    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    /// Of a file or a directory.
    ReadIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    /// Then the data.
    WriteIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    WriteOut: 8 {
        size: u32,
        padding: u32,
    }

    /// From the request's file to another.
    CopyIn: 56 {
        handle: u64,
        offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        length: u64,
        flags: u64,
    }

    CopyOut: 8 {
        copied: u64,
    }

    StatFsOut: 80 {
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block_size: u32,
        name_max: u32,
        fragment_size: u32,
        padding: u32,
        spare: [u32; 6],
    }

    /// Of a file or a directory.
    FsyncIn: 16 {
        handle: u64,
        flags: u32,
        padding: u32,
    }

    /// Then the argument.
    IoctlIn: 32 {
        handle: u64,
        flags: u32,
        command: u32,
        address: u64,
        in_size: u32,
        out_size: u32,
    }

    /// Then what comes back.
    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_vectors: u32,
        out_vectors: u32,
    }

    LseekIn: 24 {
        handle: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }

    LseekOut: 8 {
        offset: u64,
    }

    /// Then the name, and zeros up to a multiple of 8 bytes.
    DirEntry: 24 {
        ino: u64,
        next: u64,
        name_length: u32,
        file_type: u32,
    }

    /// With a negative offset, only the attributes are meant.
    InvalidInode: 24 {
        node: u64,
        offset: i64,
        length: i64,
    }

    /// Then the name and a zero.
    InvalidEntry: 16 {
        parent: u64,
        name_length: u32,
        flags: u32,
    }

    /// What an entry of a ring has besides its payload.
    RingHeader: 288 {
        in_out: [u64; 16],
        arguments: [u64; 16],
        entry: RingEntry,
    }

    /// By `commit_id` the answer names the request.
    RingEntry: 32 {
        flags: u64,
        commit_id: u64,
        payload_size: u32,
        padding: u32,
        reserved: u64,
    }

    /// In each command of a ring; what is unused fills the larger kind of submissions.
    RingCommand: 80 {
        flags: u64,
        commit_id: u64,
        queue: u16,
        padding: [u16; 3],
        unused: [u64; 7],
    }
}

impl RingHeader {
    /// The head of the request that has come, until that of the answer takes its place.
    pub fn request(&self) -> InHeader {
        let mut header = InHeader::default();
        header.as_mut_bytes().copy_from_slice(&self.in_out.as_bytes()[..size_of::<InHeader>()]);
        header
    }
}
