//! Reading ahead: while the checker judges some blocks, a thread has the system read those that it will
//! ask for next, so that the device and the processor work at the same time. It knows nothing of what
//! is in them, and what is found does not depend on it: it asks, and reads nothing itself.
//!
//! Files lead to their blocks in another order than that in which these lie on the device. So the
//! thread takes the blocks of a window, as they will be asked for, and has them read as they lie.

use std::ops::Range;
use std::thread::{self, Builder};

use nilfs_ondisk::BlockNr;
use parking_lot::{Condvar, Mutex};

use crate::volume::Volume;

/// Bytes of a window. At most two windows, with what lies between near blocks, are in the system's
/// memory before they are asked for.
const WINDOW: usize = 32 << 20;
/// The queue of a device takes this many requests, so that nobody waits for them.
const QUEUE: usize = 64;
/// Blocks so near to each other are read together, with what lies between them.
const NEAR: u64 = 8;
/// The system is asked for this many blocks at a time.
const ADVISED: u64 = 256;

/// How many blocks have been asked for, so that the thread does not go too far ahead.
#[derive(Default)]
pub(crate) struct Pace {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    blocks: u64,
    is_over: bool,
}

impl Pace {
    /// One more block was asked for.
    pub(crate) fn step(&self) {
        self.progress.lock().blocks += 1;
        self.changed.notify_one();
    }

    /// Waits until this many blocks have been asked for. Returns false if nobody wants any more.
    fn wait_for(&self, blocks: u64) -> bool {
        let mut progress = self.progress.lock();
        self.changed.wait_while(&mut progress, |it| !it.is_over && it.blocks < blocks);
        !progress.is_over
    }
}

/// Ends the thread, however the work ends.
struct Over<'p>(&'p Pace);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

impl Volume<'_> {
    /// Does work that asks for these blocks one by one, in about this order.
    pub(crate) fn reading_ahead<T>(&self, mut blocks: Vec<BlockNr>, work: impl FnOnce() -> T) -> T {
        blocks.retain(|block| self.geometry.has_block(*block));
        if blocks.len() <= QUEUE {
            blocks.sort_unstable();
            self.ask_for(&blocks);
            return work();
        }
        *self.pace.progress.lock() = Progress::default();
        let window = (WINDOW / self.block_size().bytes()).max(1);
        thread::scope(|scope| {
            let _over = Over(&self.pace);
            let ahead = || {
                for (nth, blocks) in (0..).zip(blocks.chunks_mut(window)) {
                    if !self.pace.wait_for(window as u64 * u64::saturating_sub(nth, 1)) {
                        return;
                    }
                    blocks.sort_unstable();
                    self.ask_for(blocks);
                }
            };
            // Without the thread, it only takes longer.
            let _ = Builder::new().name("ahead".into()).spawn_scoped(scope, ahead);
            work()
        })
    }

    /// Has the system begin to read blocks, given in ascending order.
    fn ask_for(&self, blocks: &[BlockNr]) {
        let mut run = 0..0_u64;
        for BlockNr(block) in blocks {
            let length = run.end - run.start;
            if *block < run.end.saturating_add(NEAR) && length < ADVISED {
                run.end = run.end.max(block + 1);
            } else {
                self.ask_for_run(std::mem::replace(&mut run, *block..block + 1));
            }
        }
        self.ask_for_run(run);
    }

    /// The same for blocks that follow each other.
    pub(crate) fn ask_for_run(&self, run: Range<u64>) {
        let start = self.block_size().address_of(BlockNr(run.start));
        if let Some(start) = start.filter(|_| !run.is_empty()) {
            let bytes = (run.end - run.start).saturating_mul(self.block_size().bytes64());
            self.device.will_need(start, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use nilfs_device::{Device, IoSlice};
    use nilfs_ondisk::{BlockSize, Geometry};

    use super::*;

    /// Blocks that are asked for. With others between them, each is asked for by itself.
    const BLOCKS: u64 = 5 * (WINDOW as u64 / 4096);
    const DISTANCE: u64 = NEAR + 1;
    /// The first one.
    const START: u64 = 4096;

    /// Tells of each block that is asked for.
    struct Told(Mutex<Sender<u64>>);

    impl Device for Told {
        fn size(&self) -> u64 {
            u64::MAX
        }

        fn is_read_only(&self) -> bool {
            true
        }

        fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn write_at(&self, _offset: u64, _pieces: &[IoSlice<'_>]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }

        fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn will_need(&self, offset: u64, bytes: u64) {
            assert_eq!(bytes, 4096, "nothing is read that nobody will ask for");
            let _ = self.0.lock().send(offset / 4096);
        }
    }

    fn device() -> (Told, Receiver<u64>) {
        let (asked, receiver) = channel();
        (Told(Mutex::new(asked)), receiver)
    }

    fn geometry() -> Geometry {
        Geometry {
            block_size: BlockSize::from_bytes(4096).unwrap(),
            blocks_per_segment: 2048,
            nsegments: 1 << 30,
            first_data_block: BlockNr(1),
            reserved_percent: 5,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
        }
    }

    /// The blocks in an order that is not that of the device, but for windows.
    fn blocks() -> Vec<BlockNr> {
        let nth = |nth: u64| nth ^ 0x1555;
        (0..BLOCKS).map(|it| BlockNr(START + nth(it) * DISTANCE)).collect()
    }

    #[test]
    fn blocks_are_asked_for_window_by_window_as_they_lie_and_not_too_far_ahead() {
        let (device, asked) = device();
        let volume = Volume::new(&device, geometry(), 0);
        let window = WINDOW / 4096;
        let blocks = blocks();
        let mut windows: Vec<Vec<u64>> =
            blocks.chunks(window).map(|it| it.iter().map(|block| block.0).collect()).collect();
        windows.iter_mut().for_each(|window| window.sort_unstable());
        let mut expected = windows.into_iter().flatten();
        volume.reading_ahead(blocks.clone(), || {
            let mut seen = 0;
            for (nth, block) in blocks.iter().enumerate() {
                // What is needed next was asked for, a whole window of it.
                while seen < (nth / window + 1) * window {
                    assert_eq!(asked.recv().ok(), expected.next());
                    seen += 1;
                }
                seen +=
                    asked.try_iter().inspect(|it| assert_eq!(Some(*it), expected.next())).count();
                assert!(seen <= (nth / window + 2) * window, "{seen} asked for, {nth} read");
                volume.block(*block).unwrap();
            }
        });
    }

    #[test]
    fn work_that_ends_early_ends_the_thread() {
        let (device, asked) = device();
        let volume = Volume::new(&device, geometry(), 0);
        volume.reading_ahead(blocks(), || asked.recv().unwrap());
        drop(device);
        assert!(asked.iter().count() < 3 * WINDOW / 4096);
    }

    #[test]
    fn blocks_that_cannot_be_are_not_asked_for() {
        let (device, asked) = device();
        let volume = Volume::new(&device, geometry(), 0);
        volume.reading_ahead(vec![BlockNr(u64::MAX), BlockNr(START), BlockNr(0)], || {});
        drop(device);
        assert_eq!(asked.iter().collect::<Vec<_>>(), [START]);
    }
}
