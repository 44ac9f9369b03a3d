//! Windows' Previous Versions: a real Samba server and its client find the past of a volume in
//! `.checkpoints/gmt`. The superuser, `/dev/fuse`, and Debian's packages samba, samba-vfs-modules and
//! smbclient are needed; `scripts/need samba` installs them.

mod common;

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Volume, nilfs};
use rustix::mount::UnmountFlags;

/// A share of a mounted volume, on a port of this machine alone.
struct Share {
    server: Child,
    port: u16,
    dir: PathBuf,
    // Last, so that it is there for as long as anything uses it.
    volume: Volume,
}

impl Share {
    /// `None` if there is no Samba.
    fn new(volume: Volume) -> Option<Self> {
        let smbd = program("smbd")?;
        program("smbclient")?;
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        let options = ["mount", "-o", "past=all"].map(AsRef::as_ref);
        nilfs(options.into_iter().chain([volume.image.as_os_str(), dir.as_os_str()])).output();
        // Nobody else gets a port that has just been given back, unless very many are asked for.
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let own = volume.beside("samba");
        fs::create_dir(&own).unwrap();
        let configuration = own.join("smb.conf");
        fs::write(&configuration, smb_conf(&own, &dir, port)).unwrap();
        let server = Command::new(smbd)
            .args(["--foreground", "--no-process-group", "--debug-stdout", "--configfile"])
            .arg(configuration)
            // At its end it ends all of its group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(own.join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut share = Self { server, port, dir, volume };
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = share.server.try_wait().unwrap();
            let log = || fs::read_to_string(share.volume.beside("samba").join("log")).unwrap();
            assert!(ended.is_none(), "smbd has ended: {}", log());
            std::thread::yield_now();
        }
        Some(share)
    }

    /// What the client says to commands.
    fn client(&self, commands: &str) -> String {
        let output = Command::new("smbclient")
            .args(["--no-pass", "--port", &self.port.to_string(), "--command", commands])
            .arg(format!("--configfile={}", self.volume.beside("samba/smb.conf").display()))
            .arg("//127.0.0.1/share")
            .current_dir(self.volume.directory.path())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    }

    /// Makes a checkpoint, and returns its name in `gmt` of the root directory.
    fn checkpoint(&self) -> String {
        nilfs(["sync".as_ref(), self.dir.as_os_str()]).output();
        let gmt = fs::read_dir(self.dir.join(".checkpoints/gmt")).unwrap();
        let names = gmt.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.max().unwrap()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Its children end when it does.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.server),
            rustix::process::Signal::TERM,
        );
        let _ = self.server.wait();
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    if found.is_none() {
        eprintln!("not tested: there is no {name}; scripts/need samba installs it");
    }
    found
}

/// The lines of the manual, and what a server needs to stay by itself.
fn smb_conf(own: &Path, share: &Path, port: u16) -> String {
    let manual = include_str!("../../../docs/checkpoints.md");
    let lines = manual.split("```ini\n[share]\npath = /mnt\n").nth(1).expect("the manual has them");
    let lines = lines.split("```").next().unwrap();
    let mut directories = String::new();
    for name in ["private dir", "lock directory", "state directory", "cache directory"]
        .into_iter()
        .chain(["pid directory", "ncalrpc dir"])
    {
        let dir = own.join(name.replace(' ', "-"));
        fs::create_dir(&dir).unwrap();
        directories += &format!("{name} = {}\n", dir.display());
    }
    format!(
        "[global]\nserver role = standalone server\nsmb ports = {port}\ninterfaces = 127.0.0.1\n\
         bind interfaces only = yes\nmap to guest = Bad User\nguest account = root\n\
         disable spoolss = yes\nload printers = no\n{directories}\
         [share]\npath = {}\nguest ok = yes\nread only = no\n{lines}",
        share.display()
    )
}

#[test]
fn samba_shows_the_versions_of_files_and_directories() {
    let Some(share) = Share::new(common::volume()) else { return };
    let file = share.dir.join("directory/file");
    let first = share.checkpoint();
    // The next checkpoint is one of another second.
    let second = loop {
        fs::write(&file, "another content\n").unwrap();
        fs::write(share.dir.join("directory/new"), "new").unwrap();
        let name = share.checkpoint();
        if name != first {
            break name;
        }
    };
    fs::write(&file, "today's\n").unwrap();
    let versions = share.client(r"allinfo directory\file");
    for name in [&first, &second] {
        assert!(versions.lines().any(|line| line == name), "{name} is not in {versions}");
    }
    let told = share.client(&format!(r"get {second}\directory\file got"));
    let got = fs::read_to_string(share.volume.beside("got"));
    assert_eq!(got.unwrap_or(told), "another content\n");
    let listed = |name: &str| share.client(&format!(r"ls {name}\directory\*"));
    assert!(listed(&second).contains(" new "), "{}", listed(&second));
    let before = listed(&first);
    assert!(before.contains(" file ") && !before.contains(" new "), "{before}");
    let refused = share.client(&format!(r"rm {first}\directory\file"));
    assert!(refused.contains("NT_STATUS_"), "{refused}");
    let told = share.client(r"get directory\file now");
    assert_eq!(fs::read_to_string(share.volume.beside("now")).unwrap_or(told), "today's\n");
}
