//! Cuts the power and looks what is left: a state that the file system really had, as new as was
//! promised, on a volume that is whole and goes on working.

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice, RecordingDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clock::ThreadClock;
use crate::generate::Profile;
use crate::history::{History, state_found};
use crate::model::Model;
use crate::power::{Disk, Survivors};
use crate::subject::{Mounting, Subject};
use crate::tree::Tree;
use crate::world::{Settings, World};

/// How many operations the volume must bear after a cut.
const OPS_AFTERWARDS: usize = 25;
/// How many times the power fails again while the volume is being mounted.
const SECOND_CUTS: usize = 2;

/// Cuts the power at every event of `history`, in several ways each.
///
/// # Errors
/// Where a cut was made and what was wrong afterwards.
pub fn cut_everywhere(settings: Settings, history: &History, seed: u64) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut disk = Disk::new(history.start.clone());
    for at in 0..=history.events.len() {
        let ways = [Survivors::Random(random.random()), Survivors::Random(random.random())];
        let ways = ways.into_iter().chain(Survivors::CORNERS);
        let enough = if disk.has_pending() { usize::MAX } else { 1 };
        for survivors in ways.take(enough) {
            cut(settings, history, &disk, at, survivors, random.random())?;
        }
        if let Some(event) = history.events.get(at) {
            disk.play(event);
        }
    }
    Ok(())
}

/// Cuts the power at `count` random events of `history`, in one random way each.
///
/// # Errors
/// As [`cut_everywhere`].
pub fn cut_somewhere(
    settings: Settings,
    history: &History,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut places: Vec<usize> =
        (0..count).map(|_| random.random_range(0..=history.events.len())).collect();
    places.sort_unstable();
    let mut disk = Disk::new(history.start.clone());
    let mut played = 0;
    for at in places {
        history.events[played..at].iter().for_each(|event| disk.play(event));
        played = at;
        let corner = random.random_range(0..10);
        let chance = Survivors::Random(random.random());
        let survivors = Survivors::CORNERS.get(corner).copied().unwrap_or(chance);
        cut(settings, history, &disk, at, survivors, random.random())?;
    }
    Ok(())
}

/// Cuts the power when `at` events have happened, which `disk` has played.
fn cut(
    settings: Settings,
    history: &History,
    disk: &Disk,
    at: usize,
    survivors: Survivors,
    seed: u64,
) -> Result<(), String> {
    let content = disk.after_cut(survivors);
    survive(settings, history, at, content, seed).map_err(|what| {
        format!("power cut at event {at} of {}, {survivors:?}: {what}", history.events.len())
    })
}

fn survive(
    settings: Settings,
    history: &History,
    at: usize,
    content: Vec<u8>,
    seed: u64,
) -> Result<(), String> {
    ThreadClock::set(ThreadClock::at_step(history.steps.len() as u64));
    let found = look_without_writing(settings, &content)?;
    let state = state_found(&history.steps, at, &found)?;
    fail_again(settings, &content, &found, seed)?;
    go_on(settings, content, state, seed)
}

/// What a read-only mount shows. It must not change the device.
fn look_without_writing(settings: Settings, content: &[u8]) -> Result<Tree, String> {
    let device = Arc::new(MemoryDevice::from(content.to_vec()));
    let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
    let how = Mounting { read_only: true, ..settings.mounting };
    let tree = Subject::mount(below, how)?.tree()?;
    if device.snapshot() != content {
        return Err("a read-only mount has written".into());
    }
    Ok(tree)
}

/// Cuts the power once more in the middle of the mount that recovers: nothing more may be lost.
fn fail_again(settings: Settings, content: &[u8], found: &Tree, seed: u64) -> Result<(), String> {
    let device = Arc::new(RecordingDevice::new(MemoryDevice::from(content.to_vec())));
    let below: Arc<dyn Device> = Arc::<RecordingDevice<MemoryDevice>>::clone(&device);
    let how = settings.mounting;
    drop(Subject::mount(below, how)?);
    let events = device.take_events();
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..SECOND_CUTS {
        let at = random.random_range(0..=events.len());
        let mut disk = Disk::new(content.to_vec());
        events[..at].iter().for_each(|event| disk.play(event));
        let survivors = Survivors::Random(random.random());
        let again = look_without_writing(settings, &disk.after_cut(survivors));
        let what = match again {
            Ok(tree) => found.difference(&tree),
            Err(what) => Some(what),
        };
        if let Some(what) = what {
            return Err(format!(
                "second cut at event {at} of {} of the mount, {survivors:?}: {what}",
                events.len()
            ));
        }
    }
    Ok(())
}

/// Mounts and goes on living, to the end.
fn go_on(settings: Settings, content: Vec<u8>, state: Model, seed: u64) -> Result<(), String> {
    let mut world = World::on(settings, content, Some(state))
        .map_err(|what| format!("when mounted to be written: {what}"))?;
    world
        .live(seed, Profile::SYNCS, OPS_AFTERWARDS)
        .map_err(|failure| format!("afterwards, {failure}"))?;
    world.end().map_err(|what| format!("afterwards: {what}"))?;
    Ok(())
}
