//! A summary that is whole and stands where another one belongs: a device has written a block in a wrong place, or
//! has lost a write and shows what was there before. What it says of the blocks after it is not so.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nilfs_check::{Options, Rule, Severity};
use nilfs_device::MemoryDevice;
use nilfs_engine::{Cno, ManualRun, NewInode};
use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LOGBGN, LogHeader, NewLog, SR, encode_summary};
use nilfs_ondisk::{FileBlock, Ino, Seq, VBlockNr};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, LogAt, Patient, content, formatted, mount, present};

/// Files of different lengths, some of which were fsynced, and checkpoints between them.
fn written(block_size: u64) -> Image {
    let device = formatted(8 << 20, block_size, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for nth in 1..=12_u8 {
        let name = format!("file {nth}");
        let file = fs.create(&root, name.as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &vec![nth; (1 + nth as usize % 4) * block_size as usize + 9]).unwrap();
        match nth % 4 {
            0 => drop(fs.commit().unwrap()),
            _ => fs.sync_file(&file).unwrap(),
        }
    }
    drop(root);
    fs.unmount().unwrap();
    Image::from(device.snapshot())
}

/// Holes were made of good blocks, which the DAT and the block maps knew, because one summary said otherwise.
#[test]
fn what_a_summary_says_of_the_blocks_of_another_log_is_not_believed() {
    for block_size in BLOCK_SIZES {
        let image = written(block_size);
        let expected = content(&image.bytes);
        let (size, newest) = (image.geometry().block_size, image.superblock.last_log());
        // Of a log after the newest nothing is needed.
        let logs: Vec<_> =
            image.logs().into_iter().filter(|log| log.header.seq <= newest.seq).collect();
        let mut copied = 0;
        for (from, to) in logs.iter().flat_map(|from| logs.iter().map(move |to| (from, to))) {
            let [summary, room] = [from, to].map(|log| log.header.summary_blocks(size));
            if from.block == to.block || to.block == newest.block || summary > room {
                continue;
            }
            let what = format!("the summary in block {} in block {}", from.block, to.block);
            let mut image = image.clone();
            let [from, to] = [from, to].map(|log| log.block.0 as usize * size.bytes());
            image.bytes.copy_within(from..from + summary as usize * size.bytes(), to);
            let patient = Patient::new(image);
            let plan = patient.plan();
            assert!(plan.obstacle.is_none(), "{what}: {:?}", plan.obstacle);
            plan.apply(&*patient.device, &mut |_| {}).unwrap();
            let report = nilfs_check::check(&*patient.device, &Options::default()).unwrap();
            assert!(report.is_consistent(), "{what}: {report}");
            assert!(content(&patient.bytes()) == expected, "{what}: {:?}", plan.repairs);
            let found = plan.before.as_ref().unwrap();
            let is_of_logs = |rule| matches!(rule, Rule::Log | Rule::LogChain);
            assert!(found.errors().all(|it| is_of_logs(it.rule)), "{what}: {found}");
            copied += 1;
        }
        assert!(copied > 50, "{copied} summaries");
    }
}

/// The summary of the last use of a segment was believed where the next one was as long, and fills the segment: files
/// became holes, "as no log has such a block".
#[test]
fn the_summary_of_an_earlier_use_of_the_segment_is_not_believed() {
    let device = formatted(8 << 20, 4096, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let all = ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
    let names: Vec<_> = (0..200_u8).map(|nth| format!("file {nth}").into_bytes()).collect();
    let mut former = Vec::new();
    for round in 0..20 {
        for (nth, name) in (0..).zip(&names) {
            let file = fs.create(&root, name, &new).unwrap().inode;
            fs.write(&file, 0, &[round ^ nth; 4000]).unwrap();
        }
        let newest = fs.commit().unwrap().0;
        former.push(Image::from(device.snapshot()));
        if round < 19 {
            names.iter().for_each(|name| fs.unlink(&root, name).unwrap());
            fs.commit().unwrap();
            fs.delete_checkpoints(Cno(1)..=Cno(newest)).unwrap();
            fs.clean(&all).unwrap();
        }
    }
    fs.unmount().unwrap();
    let image = Image::from(device.snapshot());
    let whole = content(&image.bytes);
    // By segment: its sequence number, and where its logs begin and end.
    let uses = |image: &Image| {
        let mut uses = BTreeMap::<u64, (Seq, Vec<_>)>::new();
        for LogAt { block, header, .. } in image.logs() {
            let (seq, logs) = uses.entry(block.0 / 32).or_insert((header.seq, Vec::new()));
            if *seq == header.seq {
                logs.push((block, header.nblocks));
            }
        }
        uses
    };
    let newest = image.superblock.last_log().seq;
    let mut stale = 0;
    for (segment, (seq, logs)) in uses(&image).into_iter().filter(|(_, it)| it.0 < newest) {
        let was =
            |image: &&Image| uses(image).get(&segment).is_some_and(|it| it.0 < seq && it.1 == logs);
        let Some(former) = former.iter().find(was) else { continue };
        let mut image = image.clone();
        for (log, _) in &logs {
            let at = log.0 as usize * 4096;
            image.bytes[at..at + 4096].copy_from_slice(former.block(*log));
        }
        let patient = Patient::new(image);
        if !patient.plan().repairs.is_empty() {
            // Of content, nothing tells any more that it is what was written.
            let plan = patient.heal_but_for(Severity::Warning);
            assert_eq!(plan.risk(), Risk::Safe, "segment {segment}: {:?}", plan.repairs);
            stale += 1;
        }
        assert!(content(&patient.bytes()) == whole, "segment {segment}");
    }
    assert!(stale > 3, "{stale} segments");
}

/// Fsyncs were given up whose metadata is not what the summary of an earlier use of the segment says.
#[test]
fn fsyncs_are_kept_where_such_a_summary_contradicts_their_metadata() {
    let device = formatted(8 << 20, 1024, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let mut files = Vec::new();
    let create = |files: &mut Vec<_>| {
        let name = format!("file {}", files.len());
        files.push(fs.create(&root, name.as_bytes(), &new).unwrap().inode);
    };
    // Blocks of inodes of their own for each checkpoint.
    let checkpoint = |files: &mut Vec<_>| {
        (0..16).for_each(|_| create(files));
        let cno = fs.commit().unwrap().0;
        let logs = Image::from(device.snapshot()).logs().into_iter();
        let of_it = |log: &LogAt| log.header.cno.0 == cno && log.header.has(SR);
        logs.filter(of_it).max_by_key(|log| log.header.seq).unwrap()
    };
    let named = loop {
        let log = checkpoint(&mut files);
        if log.block.0.is_multiple_of(64) && log.header.has(LOGBGN) {
            break log;
        }
    };
    checkpoint(&mut files);
    for file in files[..files.len() - 16].iter().rev().take(16) {
        fs.write(file, 0, b"synced").unwrap();
        fs.sync_file(file).unwrap();
    }
    let expected = present(&*fs);
    let mut image = Image::from(device.snapshot());
    let LogHeader { seq, cno, create, next, .. } = named.header;
    image.edit_superblocks(|raw| {
        raw.s_last_pseg.set(named.block.0);
        raw.s_last_seq.set(seq.0);
        raw.s_last_cno.set(cno.0);
    });
    let size = image.geometry().block_size;
    let earlier = NewLog {
        flags: named.header.flags,
        seq: Seq(seq.0 - 1),
        create,
        next,
        cno: Cno(1),
        summary_blocks: named.header.summary_blocks(size),
        block_sums: true,
    };
    let blocks =
        (1000..).map(|nr| BlockInfo::Data { vblocknr: VBlockNr(nr), offset: FileBlock(nr) });
    let sums = named.sums.unwrap().len();
    let file = FileInfo { ino: Ino(100), cno: Cno(1), blocks: blocks.take(sums - 1).collect() };
    let other = vec![BlockSum::of(&[0x5a; 1024]); sums];
    let seed = image.superblock.crc_seed();
    let summary = encode_summary(&earlier, &[file], &[], &other, size, seed);
    image.bytes[named.block.0 as usize * 1024..][..summary.len()].copy_from_slice(&summary);
    let patient = Patient::new(image);
    let plan = patient.heal_but_for(Severity::Warning);
    assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
    let healed = mount(&Arc::new(MemoryDevice::from(patient.bytes())));
    assert!(present(&*healed) == expected, "{:?}", plan.repairs);
}

/// An older super root over the newest one was believed: `fsck -p` said "repaired" of a volume that was empty then.
/// The older super roots and the summaries tell the right one.
#[test]
fn a_super_root_of_another_log_is_none_of_this_one() {
    for block_size in BLOCK_SIZES {
        let image = written(block_size);
        let whole = content(&image.bytes);
        let newest = image.superblock.last_log();
        let last = |log: &LogAt| log.block.0 as usize + log.header.nblocks as usize - 1;
        let logs = image.logs();
        let own = logs.iter().find(|log| log.block == newest.block).map(last).unwrap();
        let others = logs.iter().filter(|log| log.header.has(SR) && log.header.cno < newest.cno);
        let others: Vec<_> = others.map(|log| (log.header.cno, last(log))).collect();
        assert!(others.len() > 2, "{others:?}");
        for (cno, other) in others {
            let mut image = image.clone();
            let [from, to] = [other, own].map(|block| block * block_size as usize);
            image.bytes.copy_within(from..from + block_size as usize, to);
            let patient = Patient::new(image);
            let plan = patient.heal();
            let what = format!("the super root of {cno}: {:?}", plan.repairs);
            assert_eq!(plan.risk(), Risk::Safe, "{what}");
            assert!(content(&patient.bytes()) == whole, "{what}");
        }
    }
}

/// Where no log was left of what came after an older checkpoint, `fsck -p` went back to that without a word, although
/// a superblock names a later one.
#[test]
fn a_checkpoint_that_a_superblock_names_is_given_up_by_name() {
    for block_size in BLOCK_SIZES {
        let mut image = written(block_size);
        let newest = image.superblock.last_log();
        let logs = image.logs();
        let checkpoints = logs.iter().filter(|log| log.header.has(SR));
        let before = checkpoints.filter(|log| log.header.cno < newest.cno);
        let before = before.max_by_key(|log| log.header.cno).unwrap();
        let lost: Vec<_> = logs.iter().filter(|it| it.header.seq > before.header.seq).collect();
        for log in &lost {
            let at = log.block.0 as usize * block_size as usize;
            let bytes = log.header.nblocks as usize * block_size as usize;
            image.bytes[at..at + bytes].fill(0x5a);
        }
        assert!(!lost.is_empty());
        let plan = Patient::new(image).heal();
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        let named = format!("checkpoint {}", newest.cno);
        assert!(plan.repairs.iter().any(|it| it.action.contains(&named)), "{:?}", plan.repairs);
    }
}
