//! One workload on one file system on a fresh device, once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail, ensure};

use super::plan::{Plan, Table};
use crate::cleanup;
use crate::draw::Picture;
use crate::export::{Export, ExportOptions, Snapshot};
use crate::file_systems::{self, FileSystem, Program, quote};
use crate::model::{Limits, Wear};
use crate::place::{Output, Place, Session};
use crate::replay::replay;
use crate::results::Clock;
use crate::trace::{Trace, Traffic};
use crate::workloads::{Action, FioReport, Measure, Setting, Step, Timer, What};

/// What is tried.
pub(super) struct Attempt<'a> {
    pub plan: &'a Plan,
    pub place: &'a dyn Place,
    pub work: &'a Path,
    pub table: &'a Table,
    pub file_system: &'a FileSystem,
    pub setting: Setting,
    pub run: u32,
}

/// One figure, and how it came about.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub figure: f64,
    pub magic: u64,
    pub wall_seconds: f64,
    pub device_seconds: f64,
    pub traffic: Traffic,
    pub wear: Wear,
    pub limit: Option<f64>,
    pub trace: Option<String>,
}

/// What came out: the figures of the steps up to the first that failed.
pub(super) struct AttemptResult {
    pub samples: Vec<Sample>,
    pub failure: Option<String>,
    pub limits: Limits,
    pub versions: BTreeMap<String, String>,
    /// What reached the device, if nothing failed.
    pub picture: Option<Picture>,
}

impl Attempt<'_> {
    /// Does it. What goes wrong with the file system is part of what is found.
    ///
    /// # Errors
    /// The lab itself cannot go on.
    pub fn run(&mut self) -> Result<AttemptResult> {
        let model = self.table.device.model(self.setting.device_bytes)?;
        let limits = self.table.device.limits()?;
        let mut sources = Vec::new();
        for source in self.table.workload.sources {
            sources.push(source.prepare(&self.source_directory()?, self.setting.scale)?);
        }
        // A directory of its own, so that nothing of another device shines through.
        let (directory, _removal) = cleanup::directory("device-", self.work)?;
        let export = Export::start(ExportOptions {
            image: directory.join("device.img"),
            bytes: self.setting.device_bytes,
            model: Some(model),
            pace: self.plan.clock != Some(Clock::Device),
            queue_depth: self.table.device.queue_depth,
            keep_data: None,
        })?;
        let mut stage = Stage {
            attempt: self,
            export: &export,
            session: None,
            sources,
            magic: 0,
            limits,
            samples: Vec::new(),
            versions: BTreeMap::new(),
        };
        let played = stage.play();
        let ended = stage.session.take().map_or(Ok(()), Session::end);
        let Stage { mut samples, versions, .. } = stage;
        if let Some(failure) = export.failure() {
            bail!("{}: {failure}", self.work.display());
        }
        let failure = played.and(ended).err().map(|error| reason(&error));
        let trace = export.end();
        let mut picture = None;
        if failure.is_none() {
            let trace = trace?;
            picture = Some(self.draw(&trace)?);
            if self.plan.keep_traces {
                let name = self.save(&trace)?;
                samples.iter_mut().for_each(|sample| sample.trace = Some(name.clone()));
            }
        }
        Ok(AttemptResult { samples, failure, limits, versions, picture })
    }

    fn draw(&self, trace: &Trace) -> Result<Picture> {
        let times = replay(trace, &mut *self.table.device.model(trace.device_bytes)?).times;
        let steps = (self.table.workload.steps)(&self.setting);
        let measured = steps.iter().filter(|step| !step.measures.is_empty());
        Ok(Picture::of(trace, &times, &measured.map(label).collect::<Vec<_>>()))
    }

    /// Keeps a trace; its path in the results.
    fn save(&self, trace: &Trace) -> Result<String> {
        let name = self.trace_name();
        std::fs::create_dir_all(self.plan.directory.join("traces"))
            .context("cannot create the directory of traces")?;
        trace.save(&self.plan.directory.join(&name))?;
        Ok(name)
    }

    fn source_directory(&self) -> Result<PathBuf> {
        let directory = self.work.join("sources");
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(directory)
    }

    fn trace_name(&self) -> String {
        let device = Path::new(&self.table.device.name).file_stem().unwrap_or_default();
        let file_system = self.file_system.name.replace(':', "+");
        let workload = self.table.workload.name;
        format!("traces/{}-{workload}-{file_system}-{}.trace", device.display(), self.run)
    }
}

/// Dirty memory from which on a kernel writes in the background, and makes programs wait: its usual
/// tenth and fifth of the 1 GiB that a phone or a small laptop of 2012 had.
const DIRTY_BACKGROUND_BYTES: u64 = 100 << 20;
const DIRTY_BYTES: u64 = 200 << 20;

/// A workload being run.
struct Stage<'a> {
    attempt: &'a Attempt<'a>,
    export: &'a Export,
    session: Option<Box<dyn Session>>,
    sources: Vec<PathBuf>,
    magic: u64,
    limits: Limits,
    samples: Vec<Sample>,
    versions: BTreeMap<String, String>,
}

impl Stage<'_> {
    fn play(&mut self) -> Result<()> {
        self.attach()?;
        self.look_for_programs()?;
        self.note_version()?;
        for step in (self.attempt.table.workload.steps)(&self.attempt.setting) {
            self.play_step(&step).with_context(|| label(&step))?;
        }
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        self.session = Some(self.attempt.place.attach(self.export)?);
        let sources = std::mem::take(&mut self.sources);
        for source in &sources {
            let copy = format!("cp -r {} \"$SCRATCH/\"", quote(&source.to_string_lossy()));
            self.shell(&copy).context("copying the sources to memory")?;
        }
        self.sources = sources;
        self.limit_requests()?;
        self.scale_write_back()
    }

    /// Requests become no larger than the driver of the original made them.
    fn limit_requests(&mut self) -> Result<()> {
        let kib = self.attempt.table.device.request_bytes / 1024;
        let device = quote(self.session()?.device());
        let script = format!("echo {kib} >/sys/block/$(basename {device})/queue/max_sectors_kb");
        self.shell(&script).map(drop).context("setting the size of requests")
    }

    /// Lets a virtual machine keep as much in its page cache before it writes as a phone or laptop
    /// of the comparisons did, in proportion to the files: at a small scale all of a file would
    /// fit, and what was written at random would reach the device in order. The settings of this
    /// machine are not ours to change.
    fn scale_write_back(&mut self) -> Result<()> {
        if self.attempt.place.surroundings().place != "vm" {
            return Ok(());
        }
        let scaled = |bytes: u64| ((bytes as f64 * self.attempt.setting.scale) as u64).max(1 << 20);
        let script = format!(
            "echo {} >/proc/sys/vm/dirty_background_bytes; echo {} >/proc/sys/vm/dirty_bytes",
            scaled(DIRTY_BACKGROUND_BYTES),
            scaled(DIRTY_BYTES)
        );
        self.shell(&script).map(drop).context("setting how much the page cache may hold back")
    }

    fn detach(&mut self) -> Result<()> {
        self.session.take().map_or(Ok(()), Session::end)
    }

    fn session(&mut self) -> Result<&mut dyn Session> {
        match &mut self.session {
            Some(session) => Ok(&mut **session),
            None => bail!("no device is attached"),
        }
    }

    /// Runs a script to its end. Anything but success is an error with what the program said last.
    fn shell(&mut self, script: &str) -> Result<Output> {
        let sync = self.attempt.file_system.sync();
        let session = self.session()?;
        let script = format!(
            "export PATH=\"$PATH:/usr/local/sbin:/usr/sbin:/sbin\" LC_ALL=C\n\
             make_durable() {{ {sync}; }}\n\
             DIR={} SCRATCH={} SYNC=make_durable\n{script}\n",
            quote(session.directory()),
            quote(session.scratch()),
        );
        let output = session.run(&script)?;
        if output.status != 0 {
            bail!("{}{}", complaint(&output), self.last_messages());
        }
        Ok(output)
    }

    /// The last errors that a kernel which is ours alone tells of.
    fn last_messages(&mut self) -> String {
        if self.attempt.place.surroundings().place != "vm" {
            return String::new();
        }
        let printed = self.session().and_then(|session| {
            session.run("dmesg --notime --level emerg,alert,crit,err | tail -n 3")
        });
        let lines = printed.map(|output| output.stdout).unwrap_or_default();
        lines.lines().map(|line| format!("; {}", line.trim())).collect()
    }

    fn look_for_programs(&mut self) -> Result<()> {
        let needs = [self.attempt.file_system.needs, self.attempt.table.workload.needs].concat();
        if needs.is_empty() {
            return Ok(());
        }
        let output = self.shell(&file_systems::missing(&needs))?;
        match output.stdout.lines().find_map(|line| missing_program(&needs, line.trim())) {
            Some(Program { name, package }) => bail!("{name} is missing: apt install {package}"),
            None => Ok(()),
        }
    }

    fn note_version(&mut self) -> Result<()> {
        let (name, script) = self.attempt.file_system.version();
        let printed = self.shell(&format!("({script}) </dev/null || true"))?.stdout;
        if let Some(line) = printed.lines().map(str::trim).find(|line| !line.is_empty()) {
            self.versions.insert(name.to_owned(), line.to_owned());
        }
        Ok(())
    }

    fn play_step(&mut self, step: &Step) -> Result<()> {
        let label = label(step);
        let before = self.export.mark(&label);
        let output = self.act(&step.action)?;
        let after = self.export.mark(&format!("after {label}"));
        if step.action == Action::Mount {
            self.check_magic()?;
        }
        let fio = match step.measures.iter().any(wants_fio) {
            true => Some(FioReport::read(&output.stdout)?),
            false => None,
        };
        for measure in step.measures.iter().filter(|measure| self.attempt.plan.wants(measure)) {
            let sample = self.sample(measure, &output, fio, (&before, &after))?;
            self.samples.push(sample);
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<Output> {
        let (file_system, history) =
            (self.attempt.file_system, self.attempt.table.workload.history);
        let session = self.session()?;
        let (device, directory) = (session.device().to_owned(), session.directory().to_owned());
        match action {
            Action::Format => self.shell(&file_system.format(&device)),
            Action::Mount => self.shell(&file_system.mount(&device, &directory, history)),
            Action::Unmount => self.shell(&file_system.unmount(&directory)),
            Action::DropCaches => self.shell("echo 3 >/proc/sys/vm/drop_caches"),
            Action::Reattach | Action::CutPower => {
                self.detach()?;
                self.attach()?;
                Ok(Output::default())
            }
            Action::Script(script) => self.shell(script),
        }
    }

    /// What is mounted has to be what its name says.
    fn check_magic(&mut self) -> Result<()> {
        let printed = self.shell("stat -f -c %t \"$DIR\"")?.stdout;
        let magic = u64::from_str_radix(printed.trim(), 16)
            .with_context(|| format!("stat printed {printed:?}"))?;
        let expected = self.attempt.file_system.magic;
        ensure!(
            magic == expected,
            "another file system is mounted: its magic number is {magic:#x}, not {expected:#x}"
        );
        self.magic = magic;
        Ok(())
    }

    fn sample(
        &self,
        measure: &Measure,
        output: &Output,
        fio: Option<FioReport>,
        (before, after): (&Snapshot, &Snapshot),
    ) -> Result<Sample> {
        let traffic = Traffic::of(&self.export.requests(before.requests..after.requests));
        let busy = after.busy.saturating_sub(before.busy);
        let seconds = match (self.attempt.plan.clock, measure.what, fio) {
            (Some(Clock::Device | Clock::Busy), ..) => busy.as_secs_f64(),
            (_, What::Time { by: Timer::Fio, .. }, Some(report)) => report.seconds,
            _ => output.elapsed.as_secs_f64(),
        };
        let figure = match measure.what {
            What::Written => traffic.written.bytes as f64 / 1e6,
            What::SyncLatency(which) => {
                let latency = fio.and_then(|report| report.sync_latency(which));
                latency.context("fio says nothing of how long its syncs took")?
            }
            What::Time { .. } => {
                ensure!(seconds > 0.0, "nothing reached the device, so there is no time to count");
                measure.figure(seconds)
            }
        };
        Ok(Sample {
            figure,
            magic: self.magic,
            wall_seconds: output.elapsed.as_secs_f64(),
            device_seconds: busy.as_secs_f64(),
            traffic,
            wear: wear_between(&before.wear, &after.wear),
            limit: measure.limit(&self.limits),
            trace: None,
        })
    }
}

fn wants_fio(measure: &Measure) -> bool {
    matches!(measure.what, What::SyncLatency(_) | What::Time { by: Timer::Fio, .. })
}

fn missing_program(needs: &[Program], name: &str) -> Option<Program> {
    needs.iter().find(|program| program.name == name).copied()
}

/// What happened in between; the state of the erase blocks is that of the end.
fn wear_between(before: &Wear, after: &Wear) -> Wear {
    Wear {
        host_bytes: after.host_bytes.saturating_sub(before.host_bytes),
        programmed_bytes: after.programmed_bytes.saturating_sub(before.programmed_bytes),
        erases: after.erases.saturating_sub(before.erases),
        ..*after
    }
}

/// What a step is called in traces and in reasons.
fn label(step: &Step) -> String {
    let plain = match &step.action {
        Action::Format => "format",
        Action::Mount => "mount",
        Action::Unmount => "unmount",
        Action::DropCaches => "drop caches",
        Action::Reattach => "reboot",
        Action::CutPower => "power cut",
        Action::Script(_) => "preparation",
    };
    step.measures.first().map_or_else(|| plain.to_owned(), |measure| measure.name.clone())
}

/// The end of what a program said, on one line: that is where the reason stands.
fn complaint(output: &Output) -> String {
    const LONGEST: usize = 200;
    let last = |text: &str| {
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        line.map(|line| line.chars().take(LONGEST).collect::<String>())
    };
    let said = last(&output.stderr).or_else(|| last(&output.stdout));
    said.unwrap_or_else(|| format!("exit status {}", output.status))
}

fn reason(error: &Error) -> String {
    format!("{error:#}")
}
