//! A loop device that lends its name to a mount.
//!
//! The kernel mounts the type `fuseblk` only with a block device as its source. It never reads that
//! device, so an image needs one for nothing but the name; the volume's data go to the image
//! directly. The device goes away by itself with the mount.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter};

/// Returns the number of a loop device that is not attached.
const GET_FREE: Opcode = 0x4c82;
/// Attaches one.
const CONFIGURE: Opcode = 0x4c0a;
/// It detaches itself when nobody has it open or mounted any more.
const AUTOCLEAR: u32 = 4;

/// How often another program may be faster in taking the device that is free.
const ATTEMPTS: usize = 64;

/// `struct loop_config` with the `struct loop_info64` in it.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    encryption_name_and_key: [u8; 64 + 32],
    unused: [u64; 2 + 8],
}

const _: () = assert!(size_of::<Config>() == 304);

/// A device that is attached for as long as this exists or it is mounted.
pub(crate) struct Lent {
    pub path: PathBuf,
    _device: File,
}

/// Attaches a device to an image.
///
/// # Errors
/// There are no loop devices here, or the image cannot be written.
pub(crate) fn lend(image: &Path) -> io::Result<Lent> {
    let image_file = File::options().read(true).write(true).open(image)?;
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut file_name = [0; 64];
    let shown = image.as_os_str().as_bytes();
    let length = shown.len().min(file_name.len() - 1);
    file_name[..length].copy_from_slice(&shown[..length]);
    for _ in 0..ATTEMPTS {
        let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
        let device = File::options().read(true).write(true).open(&path)?;
        let config = Config {
            file: image_file.as_raw_fd() as u32,
            block_size: 0,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            // It has no other limit without this one: see `image_of`.
            size_limit: image_file.metadata()?.len(),
            number: 0,
            encryption: [0; 2],
            flags: AUTOCLEAR,
            file_name,
            encryption_name_and_key: [0; 64 + 32],
            unused: [0; 2 + 8],
        };
        // SAFETY: the kernel reads a `struct loop_config` at the address that it is given.
        match unsafe { rustix::ioctl::ioctl(&device, Setter::<CONFIGURE, Config>::new(config)) } {
            Ok(()) => return Ok(Lent { path, _device: device }),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

fn free_number(control: &File) -> io::Result<u32> {
    struct GetFree;
    // SAFETY: the request takes no argument, and returns the number.
    unsafe impl rustix::ioctl::Ioctl for GetFree {
        type Output = u32;
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            GET_FREE
        }

        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            std::ptr::null_mut()
        }

        unsafe fn output_from_ptr(
            number: rustix::ioctl::IoctlOutput,
            _: *mut std::ffi::c_void,
        ) -> rustix::io::Result<u32> {
            Ok(number as u32)
        }
    }
    // SAFETY: as above.
    Ok(unsafe { rustix::ioctl::ioctl(control, GetFree)? })
}

/// Whether a loop device does nothing but lend its name to a mount, or to one that is just gone.
#[must_use]
pub fn lends_its_name(device: &Path) -> bool {
    image_of(device).is_some()
}

/// The image to which a device belongs that does nothing but lend its name to a mount. One that
/// somebody has attached with losetup(8) or mount(8) has no limit to its size.
pub(crate) fn image_of(device: &Path) -> Option<PathBuf> {
    let number = device.to_str()?.strip_prefix("/dev/loop")?;
    let setting = |name: &str| fs::read(format!("/sys/block/loop{number}/loop/{name}"));
    let is_zero = |value: &[u8]| value.trim_ascii_end() == b"0";
    if is_zero(&setting("sizelimit").ok()?) || is_zero(&setting("autoclear").ok()?) {
        return None;
    }
    let mut image = setting("backing_file").ok()?;
    image.truncate(image.trim_ascii_end().len());
    Some(std::ffi::OsString::from_vec(image).into())
}
