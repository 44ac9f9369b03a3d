//! Traces in files.
//!
//! ```text
//! Header, 64 bytes      Records, 24 bytes each            Marks
//! 0  magic              0   offset, bytes                 JSON, as long as the header says
//! 8  version            8   length, bytes
//! 12 CRC-32 of records  16  kind (2 bits, from the top),
//!    and marks              nanoseconds (62 bits)
//! 16 device, bytes
//! 24 number of records
//! 32 length of marks
//! 40 zeros
//! 60 CRC-32 of 0..60
//! ```
//!
//! All numbers are little-endian. The file ends with the marks.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DeviceRequest, Kind, Mark, Trace};

const MAGIC: [u8; 8] = *b"flashtrc";
const VERSION: u32 = 1;

/// Bits of a record's last number that hold the time: enough for 146 years.
const TIME_BITS: u32 = 62;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Kinds by their number in a record.
const KINDS: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    content_crc: U32,
    device_bytes: U64,
    records: U64,
    marks_bytes: U64,
    zeros: [u8; 20],
    header_crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    offset: U64,
    bytes: U64,
    kind_and_time: U64,
}

const HEADER_BYTES: usize = size_of::<Header>();
const RECORD_BYTES: usize = size_of::<Record>();
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<U32>();
const _: () = assert!(HEADER_BYTES == 64 && RECORD_BYTES == 24);

/// Why a trace could not be saved or loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system said no.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is not a trace: {why}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        why: &'static str,
    },
    /// A later version of this program wrote it.
    #[error("{} is a trace of version {found}; this program reads version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        found: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("{} should have {expected} bytes but has {found}: it was cut off or damaged", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes by the header.
        expected: u128,
        /// Bytes in the file.
        found: u64,
    },
    /// What is in it cannot be what was written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, what was found and expected.
        what: String,
    },
}

impl Header {
    fn crc(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..CHECKED_BYTES])
    }

    /// The length of the file in bytes. No sum of three such numbers overflows.
    fn file_bytes(&self) -> u128 {
        let records = u128::from(self.records.get()) * RECORD_BYTES as u128;
        HEADER_BYTES as u128 + records + u128::from(self.marks_bytes.get())
    }

    /// What is wrong with it, for a file of a certain length.
    fn check(&self, path: &Path, file_bytes: u64) -> Result<(), TraceError> {
        let path = || path.to_owned();
        if self.magic != MAGIC {
            return Err(TraceError::NotATrace { path: path(), why: "it begins otherwise" });
        }
        if self.header_crc.get() != self.crc() {
            let what = "the checksum of its header is wrong".to_owned();
            return Err(TraceError::Damaged { path: path(), what });
        }
        if self.version.get() != VERSION {
            return Err(TraceError::Version { path: path(), found: self.version.get() });
        }
        match self.file_bytes() {
            expected if expected != u128::from(file_bytes) => {
                Err(TraceError::Length { path: path(), expected, found: file_bytes })
            }
            _ => Ok(()),
        }
    }
}

impl Record {
    fn of(request: &DeviceRequest) -> Self {
        let kind = match request.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 2,
            Kind::Discard => 3,
        };
        let time = u64::try_from(request.at.as_nanos()).unwrap_or(TIME_MASK).min(TIME_MASK);
        Self {
            offset: request.offset.into(),
            bytes: request.bytes.into(),
            kind_and_time: (kind << TIME_BITS | time).into(),
        }
    }

    fn request(&self) -> DeviceRequest {
        let number = self.kind_and_time.get();
        DeviceRequest {
            kind: KINDS[(number >> TIME_BITS) as usize],
            offset: self.offset.get(),
            bytes: self.bytes.get(),
            at: Duration::from_nanos(number & TIME_MASK),
        }
    }
}

pub(super) fn save(trace: &Trace, path: &Path) -> Result<(), TraceError> {
    write_whole(trace, path).map_err(|source| TraceError::File { path: path.to_owned(), source })
}

/// Under another name first: a reader never finds half of it.
fn write_whole(trace: &Trace, path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    let mut out = BufWriter::new(file.as_file_mut());
    out.write_all(&[0; HEADER_BYTES])?;
    let mut crc = crc32fast::Hasher::new();
    for request in &trace.requests {
        let record = Record::of(request);
        crc.update(record.as_bytes());
        out.write_all(record.as_bytes())?;
    }
    let marks = serde_json::to_vec(&trace.marks)?;
    crc.update(&marks);
    out.write_all(&marks)?;
    let mut header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        content_crc: crc.finalize().into(),
        device_bytes: trace.device_bytes.into(),
        records: (trace.requests.len() as u64).into(),
        marks_bytes: (marks.len() as u64).into(),
        zeros: [0; 20],
        header_crc: 0.into(),
    };
    header.header_crc = header.crc().into();
    out.seek(SeekFrom::Start(0))?;
    out.write_all(header.as_bytes())?;
    out.flush()?;
    drop(out);
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

pub(super) fn load(path: &Path) -> Result<Trace, TraceError> {
    let failed = |source| TraceError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let not_a_trace = |why| TraceError::NotATrace { path: path.to_owned(), why };
    if !metadata.is_file() {
        return Err(not_a_trace("it is not a regular file"));
    }
    if metadata.len() < HEADER_BYTES as u64 {
        return Err(not_a_trace("it is too short"));
    }
    let mut input = BufReader::new(file);
    let mut header = Header::new_zeroed();
    input.read_exact(header.as_mut_bytes()).map_err(failed)?;
    header.check(path, metadata.len())?;
    let trace = read_content(&mut input, &header).map_err(failed)?;
    trace.map_err(|what| TraceError::Damaged { path: path.to_owned(), what })
}

/// The lengths in the header have been found to be those of the file, so memory is asked for in
/// proportion to it.
fn read_content(input: &mut impl Read, header: &Header) -> io::Result<Result<Trace, String>> {
    let mut crc = crc32fast::Hasher::new();
    let mut requests = Vec::with_capacity(header.records.get() as usize);
    let mut record = Record::new_zeroed();
    for _ in 0..header.records.get() {
        input.read_exact(record.as_mut_bytes())?;
        crc.update(record.as_bytes());
        requests.push(record.request());
    }
    let mut marks = vec![0; header.marks_bytes.get() as usize];
    input.read_exact(&mut marks)?;
    crc.update(&marks);
    let (found, expected) = (crc.finalize(), header.content_crc.get());
    if found != expected {
        return Ok(Err(format!("the checksum is {found:#010x}, not {expected:#010x}")));
    }
    let device_bytes = header.device_bytes.get();
    Ok(parse_marks(&marks).and_then(|marks| checked(Trace { device_bytes, requests, marks })))
}

fn parse_marks(json: &[u8]) -> Result<Vec<Mark>, String> {
    serde_json::from_slice(json).map_err(|error| format!("its marks: {error}"))
}

/// The users of a trace rely on requests that lie on the device and marks in their order.
fn checked(trace: Trace) -> Result<Trace, String> {
    let size = trace.device_bytes;
    for (number, request) in trace.requests.iter().enumerate() {
        if request.offset.checked_add(request.bytes).is_none_or(|end| end > size) {
            let DeviceRequest { offset, bytes, .. } = request;
            return Err(format!(
                "request {number} asks for {bytes} bytes at {offset} of a device of {size} bytes"
            ));
        }
    }
    if !trace.marks.is_sorted_by_key(|mark| mark.before) {
        return Err("its marks are not in order".to_owned());
    }
    match trace.marks.last() {
        Some(last) if last.before > trace.requests.len() => Err(format!(
            "the mark {:?} stands after {} requests, but there are {}",
            last.name,
            last.before,
            trace.requests.len()
        )),
        _ => Ok(trace),
    }
}
