//! The tables of the lab fit together: each name that is looked up is there.

use std::collections::HashSet;
use std::path::Path;

use nilfs_lab::model::preset;
use nilfs_lab::results::Unit;
use nilfs_lab::run::{Choice, Suite};
use nilfs_lab::workloads::{self, Measure, Setting, Workload};
use nilfs_lab::{file_systems, published};

const SETTING: Setting = Setting { scale: 1.0, asked: 1.0, device_bytes: 16_000_000_000 };

fn measures(workload: &Workload) -> Vec<Measure> {
    (workload.steps)(&SETTING).into_iter().flat_map(|step| step.measures).collect()
}

#[test]
fn every_published_figure_has_a_row_to_stand_in() {
    let nilfs = Path::new("nilfs");
    let devices: HashSet<String> = preset::all().into_iter().map(|device| device.name).collect();
    let published = published::all().unwrap();
    assert!(published.len() > 70, "only {} figures", published.len());
    for figure in published {
        let about = format!("{figure:?}");
        let workload = workloads::find(&figure.workload).expect(&about);
        let row = measures(workload).into_iter().find(|row| row.name == figure.step);
        assert_eq!(row.expect(&about).unit, figure.unit, "{about}");
        file_systems::find(&figure.file_system, nilfs).expect(&about);
        for device in figure.devices.iter().filter(|name| *name != "*") {
            assert!(devices.contains(device), "{about}: there is no device {device}");
        }
        assert!(figure.figure > 0.0 && !figure.source.is_empty(), "{about}");
    }
}

#[test]
fn the_published_suite_measures_every_published_figure() {
    let suite = Suite::find("published").unwrap();
    let tables = Choice::default().tables(suite, Path::new("nilfs")).unwrap();
    for figure in published::all().unwrap() {
        let measured = tables.iter().any(|table| {
            table.workload.name == figure.workload
                && figure.devices.iter().any(|name| name == "*" || *name == table.device.name)
                && table.file_systems.iter().any(|system| system.name == figure.file_system)
        });
        assert!(measured, "nobody measures {figure:?}");
    }
}

#[test]
fn a_cell_finds_the_figure_it_is_held_against() {
    let found = published::figure("iozone", "write-fsync", "microsd-2012", "f2fs-lfs").unwrap();
    assert_eq!(found.unit, Unit::MegabytesPerSecond);
    // 1057.9 KiB/s.
    assert!((found.figure - 1.083_289).abs() < 1e-5, "{}", found.figure);
    assert!(published::figure("life", "make", "any device", "ext4:noatime").is_some());
    assert!(published::figure("iozone", "write-fsync", "usb-2010", "f2fs-lfs").is_none());
}

#[test]
fn no_two_rows_of_a_workload_have_the_same_name() {
    for workload in workloads::all() {
        let names: Vec<String> = measures(workload).into_iter().map(|row| row.name).collect();
        let distinct: HashSet<&String> = names.iter().collect();
        assert!(!names.is_empty() && distinct.len() == names.len(), "{}: {names:?}", workload.name);
    }
}

#[test]
fn a_device_of_any_scale_has_room_for_its_workload() {
    for suite in ["published", "quick"] {
        let tables =
            Choice::default().tables(Suite::find(suite).unwrap(), Path::new("nilfs")).unwrap();
        for scale in [1.0, 1.0 / 8.0, 1.0 / 64.0, 1.0 / 4096.0] {
            for table in &tables {
                let needed = (table.workload.bytes_needed)(scale);
                let device = table.setting(scale).device_bytes;
                let name = (table.workload.name, &table.device.name, scale);
                assert!(device >= needed + needed / 2, "{name:?}: {needed} on {device}");
                // The model of a whole drive takes minutes to be filled.
                if scale < 0.1 {
                    let model = table.device.model(device);
                    model.unwrap_or_else(|error| panic!("{name:?}: {error}"));
                }
            }
        }
    }
}

#[test]
fn a_scale_is_a_part_of_the_whole_and_nothing_else() {
    assert!((workloads::scale_of("1/8").unwrap() - 0.125).abs() < 1e-12);
    assert!((workloads::scale_of("0.5").unwrap() - 0.5).abs() < 1e-12);
    for wrong in ["0", "-1", "2", "1/0", "0/0", "nan", "one", "", "1/8/2"] {
        assert!(workloads::scale_of(wrong).is_err(), "{wrong:?} is taken for a scale");
    }
}

/// A report at 1/16 had rows of "4 GB" and "256 of 1 MiB" that were none.
#[test]
fn what_is_said_of_a_step_is_what_it_does_at_its_scale() {
    let steps = |workload: &Workload, scale: f64| {
        let setting = Setting { scale, asked: scale, device_bytes: 1 << 30 };
        let steps = (workload.steps)(&setting).into_iter();
        steps.filter(|step| !step.measures.is_empty()).collect::<Vec<_>>()
    };
    for workload in workloads::all() {
        for (whole, part) in steps(workload, 1.0).iter().zip(&steps(workload, 1.0 / 16.0)) {
            let name = &whole.measures[0].name;
            assert!(!whole.about.is_empty(), "{} {name}", workload.name);
            for (measure, scaled) in whole.measures.iter().zip(&part.measures) {
                assert_eq!(measure.name, scaled.name, "a row has one name at any scale");
                assert_eq!(scaled.about, part.about);
            }
            // A script that does less says less.
            let same = whole.action == part.action;
            assert!(same || whole.about != part.about, "{} {name}: {}", workload.name, part.about);
        }
    }
    let big_file = steps(workloads::find("big-file").unwrap(), 1.0 / 16.0);
    assert!(big_file[0].about.contains("268 MB"), "{}", big_file[0].about);
    let synced = steps(workloads::find("dd-sync").unwrap(), 1.0 / 16.0);
    let abouts: Vec<&str> = synced.iter().map(|step| step.about.as_str()).collect();
    let each = "each durable before the next";
    assert_eq!(abouts, ["64 × 4 KiB", "4 × 1 MiB", "16 × 1 MiB"].map(|so| format!("{so}, {each}")));
}
