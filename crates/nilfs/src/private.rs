//! New files with bytes of a volume in them. The bytes belong to the users of the volume, also what
//! these have deleted, so only the owner of such a file may read it, regardless of the umask.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes a file that can be read and written. What has the name already stays, and a symbolic link that
/// has it is not followed.
///
/// # Errors
/// The name is in use, or the file cannot be made.
pub fn create_new(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}
