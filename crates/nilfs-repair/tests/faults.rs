//! A repair of which one request fails, whichever it is, does no harm: nothing is lost that the device
//! can read, and the next repair finishes it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilfs_check::Options;
use nilfs_device::{Action, Device, Fault, FaultyDevice, MemoryDevice};
use nilfs_repair::{Plan, RepairError, Risk};
use support::{Content, Image, Patient, UUID, content, damaged};

/// Reads of each repair that fail, evenly distributed over all; `NILFS_TEST_SCALE` multiplies them.
const READS: u64 = 30;

/// Plans a repair, and makes it if it is no worse than this.
fn repair(device: &Arc<dyn Device>, worst: Risk) -> Result<Plan, RepairError> {
    let plan = nilfs_repair::plan(device, &Options::default(), UUID)?;
    if plan.can_be_applied() && plan.risk() <= worst {
        plan.apply(&**device, &mut |_| {})?;
    }
    Ok(plan)
}

fn scale() -> u64 {
    std::env::var("NILFS_TEST_SCALE").map_or(1, |it| it.parse().expect("a number"))
}

/// The device of an image, of which requests fail by the rule, in the order of the actions.
fn failing(image: &Image, action: Action, nth: u64, gone: bool) -> Arc<FaultyDevice<MemoryDevice>> {
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(image.bytes.clone()));
    let mut seen = 0;
    faults.set(move |request| {
        seen += u64::from(request.action == action);
        let fails = if gone { seen > nth } else { seen == nth + 1 && request.action == action };
        fails.then_some(Fault::Partial)
    });
    Arc::new(device)
}

/// How many requests of each kind a repair makes, and what it leaves.
fn uncut(image: &Image) -> ([(Action, u64); 3], Content) {
    let actions = [Action::Read, Action::Write, Action::Flush];
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(image.bytes.clone()));
    let seen = Arc::clone(&counts);
    faults.set(move |request| {
        let nth = actions.iter().position(|action| *action == request.action)?;
        seen[nth].fetch_add(1, Ordering::Relaxed);
        None
    });
    let device = Arc::new(device);
    let shared: Arc<dyn Device> = device.clone();
    repair(&shared, Risk::Safe).unwrap();
    let left = content(&device.below().snapshot());
    let count = |nth: usize| (actions[nth], counts[nth].load(Ordering::Relaxed));
    ([count(0), count(1), count(2)], left)
}

#[test]
fn any_request_of_a_repair_can_fail() {
    let safe = |image: &Image| Patient::new(image.clone()).plan().risk() != Risk::Loses;
    let mut tried = 0;
    for (damage, image) in damaged().into_iter().filter(|(_, image)| safe(image)) {
        let (counts, whole) = uncut(&image);
        println!("{damage}: {counts:?}");
        let requests = counts.into_iter().flat_map(|(action, count)| {
            let step = if action == Action::Read { count.div_ceil(READS * scale()) } else { 1 };
            (0..count).step_by(step as usize).map(move |nth| (action, nth))
        });
        for (nth, (action, request)) in requests.enumerate() {
            let what = format!("{damage}, {action:?} {request}");
            let device = failing(&image, action, request, nth % 2 == 0);
            let shared: Arc<dyn Device> = device.clone();
            // As fsck -p does: what cannot be read is not given up.
            let done = repair(&shared, Risk::Safe);
            assert!(done.is_err() || action == Action::Read, "{what}: nobody was told");
            device.faults().clear();
            // What the interrupted repair has written itself may have to go.
            let again =
                repair(&shared, Risk::Loses).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(again.obstacle.is_none(), "{what}: {:?}", again.obstacle);
            let report = nilfs_check::check(&*device, &Options::default()).unwrap();
            assert!(report.is_consistent(), "{what}: {report}");
            assert!(content(&device.below().snapshot()) == whole, "{what}: a file has changed");
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}
