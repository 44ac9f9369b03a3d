use super::*;

fn sample() -> Records {
    let time = |seconds| Time { seconds, nanoseconds: 5 };
    let inode = InodeRecord {
        ino: Ino(12),
        generation: 3,
        mode: 0o100_644,
        links: 1,
        uid: 1000,
        gid: 100,
        flags: 0x10,
        device_or_parent: 7,
        changed: time(11),
        modified: Some(time(10)),
    };
    let name = |name: &[u8], target| NameRecord { directory: Ino(2), name: name.to_vec(), target };
    let content = ContentRecord {
        ino: Ino(12),
        generation: 3,
        size: 5000,
        cut: Some(FileBlock(1)),
        modified: time(12),
        changed: time(13),
    };
    Records {
        base: Cno(40),
        number: 2,
        unflushed: Some(3),
        records: vec![
            Record::Inode(inode),
            Record::Inode(InodeRecord { modified: None, links: 0, ..inode }),
            Record::Name(name(b"new", Some((Ino(12), FileType::Regular)))),
            Record::Name(name(&[b'x'; 255], None)),
            Record::Content(content),
            Record::Content(ContentRecord { cut: None, ..content }),
            Record::Bytes(BytesRecord { ino: Ino(12), offset: 4096, bytes: b"appended".to_vec() }),
            Record::Extent(ExtentRecord {
                ino: Ino(12),
                offset: FileBlock(0),
                vblocknr: VBlockNr(77),
                block: BlockNr(4000),
                count: 9,
            }),
        ],
    }
}

#[test]
fn records_read_back_as_written() {
    let records = sample();
    let mut bytes = records.encode();
    assert_eq!(bytes.len(), records.size());
    bytes.resize(bytes.len() + 100, 0);
    assert_eq!(Records::parse(&bytes).unwrap(), Some(records));
}

#[test]
fn a_summary_without_records_has_none() {
    for bytes in [&[][..], &[0; 20], &[0; 400]] {
        assert_eq!(Records::parse(bytes).unwrap(), None);
    }
}

/// To skip what is not known would be to lose what was fsynced.
#[test]
fn what_is_not_known_is_refused() {
    let bytes = sample().encode();
    let version = std::mem::offset_of!(RawHead, version);
    for (at, says) in [(version, "version"), (HEAD_SIZE, "kind")] {
        let mut newer = bytes.clone();
        newer[at] = 99;
        let error = Records::parse(&newer).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("99"), "{error}");
    }
}

#[test]
fn records_that_are_cut_off_or_out_of_range_are_refused() {
    let bytes = sample().encode();
    for length in HEAD_SIZE..bytes.len() {
        assert!(Records::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    let refused = |record: Record| {
        let records = Records { records: vec![record], ..sample() };
        assert!(Records::parse(&records.encode()).is_err(), "{records:?}");
    };
    let [Record::Inode(inode), _, Record::Name(name), _, Record::Content(content), ..] =
        &sample().records[..]
    else {
        panic!("the sample has others");
    };
    refused(Record::Inode(InodeRecord { ino: Ino::DAT, ..*inode }));
    refused(Record::Inode(InodeRecord { mode: 0o644, ..*inode }));
    let directory = InodeRecord { mode: 0o040_755, links: 2, device_or_parent: 0, ..*inode };
    refused(Record::Inode(directory));
    let reserved = Some((Ino(8), FileType::Regular));
    refused(Record::Name(NameRecord { target: reserved, ..name.clone() }));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        refused(Record::Name(NameRecord { name: bad.to_vec(), ..name.clone() }));
    }
    refused(Record::Content(ContentRecord { size: 1 << 63, ..*content }));
    refused(Record::Bytes(BytesRecord { ino: Ino(12), offset: u64::MAX, bytes: vec![1] }));
    let extent = ExtentRecord {
        ino: Ino(12),
        offset: FileBlock(0),
        vblocknr: VBlockNr(u64::MAX),
        block: BlockNr(4),
        count: 1,
    };
    refused(Record::Extent(extent));
    refused(Record::Extent(ExtentRecord { vblocknr: VBlockNr(1), count: 0, ..extent }));
}
