//! `dumpseg`: what the logs of segments say about their blocks.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::bail;
use nilfs_engine::Log;
use nilfs_ondisk::summary::{BlockInfo, FileInfo};
use nilfs_ondisk::{Geometry, SegNum};

use super::words::{Words, split_volume};
use super::{FAILED, Tool, number, volume};
use crate::output::{self, local_time};

pub(super) const TOOL: Tool = Tool {
    name: "dumpseg",
    usage: "\
Usage: dumpseg [OPTION]... [DEVICE|NODE] SEGNUM...
Show the logs of segments of a NILFS2 volume.

  -h, --help      this help
  -V, --version   the version
",
    long: &[],
    complaint: "dumpseg: ",
    run,
};

fn run(words: Words) -> anyhow::Result<ExitCode> {
    let tool = words.tool();
    let operands = words.operands([])?;
    if operands.is_empty() {
        bail!("too few arguments");
    }
    let (name, words) = split_volume(operands, |operand| number::exact(operand).is_some());
    let (geometry, segments) = volume::look(name.as_deref(), |volume| {
        let segments = words.iter().filter_map(|word| number::exact(word.as_bytes()));
        let segments = segments.map(SegNum).take_while(|&s| volume.geometry().has_segment(s));
        let read = |segment| Ok((segment, volume.logs(segment)?));
        Ok((volume.geometry(), segments.map(read).collect::<anyhow::Result<Vec<_>>>()?))
    })?;
    let mut segments = segments.iter();
    let mut out = io::BufWriter::new(output::out());
    let mut code = ExitCode::SUCCESS;
    for word in &words {
        if number::exact(word.as_bytes()).is_none() {
            out.flush()?;
            tool.complain(format_args!("{}: invalid segment number", word.to_string_lossy()));
            code = ExitCode::from(FAILED);
            continue;
        }
        let Some((segment, logs)) = segments.next() else {
            out.flush()?;
            bail!("failed to read segment: Invalid argument");
        };
        print(&mut out, &geometry, *segment, logs)?;
    }
    out.flush()?;
    Ok(code)
}

fn print(
    out: &mut impl Write,
    geometry: &Geometry,
    segment: SegNum,
    logs: &[Log],
) -> anyhow::Result<()> {
    writeln!(out, "segment: segnum = {segment}")?;
    if let Some(first) = logs.first() {
        let next = geometry.segment_of(first.header.next);
        writeln!(out, "  sequence number = {}, next segnum = {next}", first.header.seq)?;
    }
    for log in logs {
        let header = &log.header;
        writeln!(out, "  partial segment: blocknr = {}, nblocks = {}", log.start, header.nblocks)?;
        writeln!(out, "    creation time = {}", local_time(header.create as i64))?;
        writeln!(out, "    nfinfo = {}", log.files.len())?;
        let mut block = log.start.0 + header.summary_blocks(geometry.block_size);
        for file in &log.files {
            print_file(out, file, block)?;
            block += file.blocks.len() as u64;
        }
    }
    Ok(())
}

/// A file whose blocks lie from `first` on.
fn print_file(out: &mut impl Write, file: &FileInfo, first: u64) -> io::Result<()> {
    let ndata = file.blocks.iter().filter(|block| !block.is_node()).count();
    writeln!(out, "    finfo")?;
    writeln!(
        out,
        "      ino = {}, cno = {}, nblocks = {}, ndatblk = {ndata}",
        file.ino,
        file.cno,
        file.blocks.len()
    )?;
    for (info, block) in file.blocks.iter().zip(first..) {
        match info {
            BlockInfo::Data { vblocknr, offset } => {
                write!(out, "        vblocknr = {vblocknr}, blkoff = {offset}")?;
            }
            BlockInfo::Node { vblocknr } => write!(out, "        vblocknr = {vblocknr}")?,
            BlockInfo::DatData { offset } => write!(out, "        blkoff = {offset}")?,
            BlockInfo::DatNode { key, level } => {
                write!(out, "        blkoff = {key}, level = {level}")?;
            }
        }
        writeln!(out, ", blocknr = {block}")?;
    }
    Ok(())
}
