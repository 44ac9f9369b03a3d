//! Real kernels to test against: lets a test have a real Linux work on an image file.
//!
//! A test is judged by Linux's own nilfs2, which runs in User-Mode Linux (Debian's package
//! `user-mode-linux`, with `kmod` and `nilfs-tools`), as root, without loading anything into the
//! host's kernel. Where something of this is missing, every function here fails with a sentence
//! that says what to install; a test must let that fail it, never skip.
//!
//! This crate knows nothing of the other crates of the workspace: a judge that shared their code
//! would share their mistakes. It offers
//!
//! * [`linux`]: what is usually wanted, ready to use: fill a volume, change it, list it, cut its
//!   power, recover it;
//! * [`Uml`]: any bash script in a guest that has the image as its disk, with a [`ScriptResult`]
//!   and a [`KernelLog`] that knows which lines are complaints; or killed in the middle
//!   ([`RunningUml`]);
//! * [`LinuxImage`]: images made by mkfs.nilfs2, and [`NilfsUtils`]: what lscp, lssu, dumpseg and
//!   nilfs-tune say of an image;
//! * [`Fill`] and [`Manifest`]: a rich tree that is the same on every file system, and its listing,
//!   to be compared;
//! * [`CrashWorkload`], [`count_synced`] and [`verify_synced`]: work until the power fails, with a
//!   log of what must have survived;
//! * [`Tools`]: all that as the programs `fill` and `manifest`, for guests, and for processes of
//!   the host that a test can kill.
//!
//! # An image that we made is right in Linux
//!
//! ```no_run
//! use nilfs_real_kernels::{Fill, Manifest, NilfsUtils, linux};
//! # fn mount_with_ours(_: &std::path::Path) -> &'static std::path::Path { unimplemented!() }
//! # fn unmount_ours() {}
//! # let image = std::path::Path::new("volume.img");
//! let fill = Fill { seed: 1, scale: 1 };
//! let mount_point = mount_with_ours(image);
//! std::fs::create_dir(mount_point.join("tree"))?;
//! fill.populate(&mount_point.join("tree"))?;
//! let ours = Manifest::of(&mount_point.join("tree"))?;
//! unmount_ours();
//!
//! // Each of these fails if the kernel says anything but that it mounts the volume.
//! assert_eq!(Manifest::diff(&ours, &linux::manifest(image)?), [""; 0]);
//! let modified_by_linux = linux::modify(image, fill)?;
//! assert_eq!(NilfsUtils::read(image)?.complaints(), [""; 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # An image whose power Linux lost is right in ours
//!
//! ```no_run
//! use nilfs_real_kernels::{CrashWorkload, LinuxImage, linux, verify_synced};
//! # fn mount_with_ours(_: &std::path::Path) -> &'static std::path::Path { unimplemented!() }
//! # let (image, log) = (std::path::Path::new("volume.img"), std::path::Path::new("synced"));
//! LinuxImage::of_size(2 << 30).block_size(1024).make(image)?;
//! linux::crash(image, CrashWorkload { seed: 1, strict: false }, log, 200)?;
//! let mount_point = mount_with_ours(image);
//! let report = verify_synced(log, &mount_point.join("work"))?;
//! assert_eq!(report.failures, [""; 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The other way round, `Tools::get()?.fill()` runs `fill crash --strict` as a process on our mount
//! until the test kills what serves it; `strict` adds the syncs that Linux's nilfs2 loses and ours
//! must not.
//!
//! # Anything else
//!
//! ```no_run
//! use nilfs_real_kernels::Uml;
//!
//! let result = Uml::new("volume.img")
//!     .env("NAME", "it's a name")
//!     .script("mount_nilfs ro; cat \"$MNT/$NAME\"; umount_nilfs")
//!     .run()?
//!     .without_complaint()?;
//! assert_eq!(result.stdout, "content\n");
//! # Ok::<(), nilfs_real_kernels::Error>(())
//! ```

mod crash;
mod error;
mod fill;
mod image;
mod kernel_log;
pub mod linux;
mod manifest;
mod nilfs_utils;
mod script_result;
mod synced;
mod tools;
mod uml;

pub use crash::CrashWorkload;
pub use error::{Error, Result};
pub use fill::Fill;
pub use image::LinuxImage;
pub use kernel_log::KernelLog;
pub use manifest::{Manifest, ParseManifestError};
pub use nilfs_utils::{NilfsUtils, ToolOutput};
pub use script_result::ScriptResult;
pub use synced::{SyncedReport, count_synced, verify_synced};
pub use tools::{Tools, programs};
pub use uml::{RunningUml, Uml};
