//! What a run says before it begins: where file systems run and why, what is measured, and how
//! long that takes.

use std::collections::BTreeSet;
use std::time::Duration;

use nilfs_lab::file_systems::OURS;
use nilfs_lab::names::counted;
use nilfs_lab::run::{Beginning, Plan};

pub fn announcement(plan: &Plan, beginning: &Beginning) -> String {
    let Beginning { surroundings, why, left_out, jobs, done, figures, left } = beginning;
    let (place, kernel) = match surroundings.place.as_str() {
        "vm" => ("in a virtual machine", "its kernel"),
        _ => ("on this machine", "the kernel"),
    };
    let mut lines =
        vec![format!("File systems run {place} (Linux {}): {why}.", surroundings.kernel)];
    let (mut in_kernel, mut ours) = (Vec::new(), false);
    for system in names(plan.jobs().map(|(_, file_system)| file_system.name.as_str())) {
        match system.split(':').next() == Some(OURS) {
            true => ours = true,
            false if left_out.iter().any(|(name, _)| *name == system) => {}
            false => in_kernel.push(system),
        }
    }
    let mut by = Vec::new();
    if !in_kernel.is_empty() {
        by.push(format!("{} by {kernel}", in_kernel.join(", ")));
    }
    if ours {
        by.push(format!("{OURS} by {}, through FUSE", plan.nilfs.display()));
    }
    lines.push(format!("  Served: {}.", by.join("; ")));
    for (name, reason) in left_out {
        lines.push(format!("  {name} cannot be measured: {reason}."));
    }
    let systems = names(plan.jobs().map(|(_, system)| system.name.as_str()));
    let file_systems = names(plan.jobs().map(|(_, system)| system.base_name())).len();
    let modes = match systems.len() {
        all if all > file_systems => format!(" in {all} modes"),
        _ => String::new(),
    };
    let devices = names(plan.tables.iter().map(|table| table.device.name.as_str())).len();
    let workloads = names(plan.tables.iter().map(|table| table.workload.name)).len();
    lines.push(format!(
        "{}, {} and {}{modes} make {}, which give {}.{}",
        counted(workloads, "workload"),
        counted(devices, "device"),
        counted(file_systems, "file system"),
        counted(*jobs, "measurement"),
        counted(*figures, "figure"),
        if *done > 0 {
            format!(" {done} of the measurements are done already.")
        } else {
            String::new()
        },
    ));
    lines.push(format!(
        "It takes {}. Ctrl-C ends it with a report of what there is, and the same command goes on.",
        duration(*left)
    ));
    lines.join("\n")
}

/// Each once, in the order of their first appearance.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    all.filter(|name| seen.insert(*name)).collect()
}

/// An estimated time, as exactly as it is known.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let minutes = (seconds + 30) / 60;
    match seconds {
        0..60 => "less than a minute".to_owned(),
        60..7200 => format!("about {}", counted(minutes as usize, "minute")),
        _ => format!("about {}", counted(((minutes + 30) / 60) as usize, "hour")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use nilfs_lab::place::Surroundings;
    use nilfs_lab::run::{Choice, Suite, Where};

    use super::*;

    #[test]
    fn it_says_where_file_systems_run_and_why_and_what_is_left_out() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let choice = Choice {
            workloads: words(&["dd-sync"]),
            devices: words(&["microsd-2012", "nvme"]),
            file_systems: words(&["ext4", "vfat", "ext4:discard", "nilfs:noatime"]),
        };
        let nilfs = PathBuf::from("/usr/bin/nilfs");
        let plan = Plan {
            suite: None,
            tables: choice.tables(Suite::find("quick").unwrap(), &nilfs).unwrap(),
            scale: 1.0,
            runs: 1,
            place: Where::Auto,
            clock: None,
            directory: Path::new("results").to_owned(),
            nilfs,
            keep_traces: false,
        };
        let beginning = Beginning {
            surroundings: &Surroundings {
                place: "host".to_owned(),
                kernel: "6.12.48".to_owned(),
                machine: "some".to_owned(),
            },
            why: "for a reason",
            left_out: vec![("vfat", "the kernel has no vfat".to_owned())],
            jobs: 8,
            done: 3,
            figures: 24,
            left: Duration::from_secs(300),
        };
        let expected = "\
File systems run on this machine (Linux 6.12.48): for a reason.
  Served: ext4, ext4:discard by the kernel; nilfs by /usr/bin/nilfs, through FUSE.
  vfat cannot be measured: the kernel has no vfat.
1 workload, 2 devices and 3 file systems in 4 modes make 8 measurements, which give 24 figures. \
3 of the measurements are done already.
It takes about 5 minutes. Ctrl-C ends it with a report of what there is, and the same command \
goes on.";
        assert_eq!(announcement(&plan, &beginning), expected);
    }

    #[test]
    fn an_estimate_is_never_nothing_and_no_more_exact_than_it_can_be() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(text(0), "less than a minute");
        assert_eq!(text(61), "about 1 minute");
        assert_eq!(text(400), "about 7 minutes");
        assert_eq!(text(7199), "about 120 minutes");
        assert_eq!(text(24 * 3600), "about 24 hours");
    }
}
