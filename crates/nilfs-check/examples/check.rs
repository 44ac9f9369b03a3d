//! Checks the volumes in the images or devices that are named, and prints what was found.
//! Exit status 1 if one of them breaks a rule.

use std::path::Path;
use std::process::ExitCode;

use nilfs_check::{Options, check};
use nilfs_device::{Access, FileDevice};

fn main() -> ExitCode {
    let mut sound = true;
    for name in std::env::args().skip(1) {
        println!("{name}:");
        match check_image(Path::new(&name)) {
            Ok(consistent) => sound &= consistent,
            Err(error) => {
                println!("{error}");
                sound = false;
            }
        }
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_image(path: &Path) -> Result<bool, Box<dyn std::error::Error>> {
    let device = FileDevice::open(path, Access::Inspect)?;
    let report = check(&device, &Options::default())?;
    println!("{report}");
    Ok(report.is_consistent())
}
