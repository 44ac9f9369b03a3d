//! Completions for shells: small scripts that ask this program what fits.
//!
//! So they cannot be older than the program, know the words after `-o`, the checkpoints of a volume and
//! what is mounted, and leave out what is hidden.

mod values;

use std::io::Write;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::{EnvCompleter, Fish, Zsh};

use crate::cli::Cli;

pub use values::{moment, mount, snapshot};

/// The environment variable by which a script asks. Its value is the name of the shell.
const VARIABLE: &str = "NILFS_COMPLETE";

/// Answers a script and ends the process if a script has asked; otherwise does nothing.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The scripts, by the names under which shells look for them.
///
/// # Errors
/// None in practice: they are written to memory.
pub fn scripts() -> std::io::Result<Vec<(&'static str, Vec<u8>)>> {
    let mut fish = Vec::new();
    Fish.write_registration(VARIABLE, "nilfs", "nilfs", "nilfs", &mut fish)?;
    let mut zsh = Vec::new();
    Zsh.write_registration(VARIABLE, "nilfs", "nilfs", "nilfs", &mut zsh)?;
    // zsh reads the file when it needs a completion for the first time, and wants one then.
    writeln!(zsh, "[ \"$funcstack[1]\" = _nilfs ] && _clap_dynamic_completer_nilfs \"$@\"")?;
    Ok(vec![("nilfs.bash", BASH.into()), ("nilfs.fish", fish), ("_nilfs", zsh)])
}

/// The script of clap_complete is not used here: to it, `-o pp=1h` would be four words.
const BASH: &str = r#"# What readline takes for several words, at each = and :, is one word.
_nilfs() {
    local IFS=$'\013' words=() piece nth glued= last
    for ((nth = 0; nth < ${#COMP_WORDS[@]}; nth++)); do
        piece=${COMP_WORDS[nth]}
        if ((nth > 0)) && [[ $glued || $piece == [=:]* ]]; then
            words[${#words[@]} - 1]+=$piece
        else
            words+=("$piece")
        fi
        if [[ $piece == *[=:] ]]; then glued=1; else glued=; fi
        if ((nth == COMP_CWORD)); then last=$((${#words[@]} - 1)) glued=; fi
    done
    COMPREPLY=($(_CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX=$last NILFS_COMPLETE=bash \
        nilfs -- "${words[@]}" 2>/dev/null))
    # Of that word, readline replaces only what it takes for the last one.
    COMPREPLY=("${COMPREPLY[@]#"${words[last]%"$2"}"}")
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace
    fi
}
complete -o bashdefault -o nosort -F _nilfs nilfs
"#;

#[cfg(test)]
mod tests {
    use clap_complete::engine::ArgValueCompleter;

    #[test]
    fn every_moment_and_every_snapshot_can_be_completed() {
        fn walk(command: &clap::Command, found: &mut usize) {
            for arg in command.get_arguments() {
                let names = arg.get_value_names().unwrap_or_default();
                if names.iter().any(|name| ["WHEN", "SNAPSHOT"].contains(&name.as_str())) {
                    let is_completed = arg.get::<ArgValueCompleter>().is_some();
                    assert!(is_completed, "{} of {}", arg, command.get_name());
                    *found += 1;
                }
            }
            command.get_subcommands().for_each(|it| walk(it, found));
        }
        let mut found = 0;
        walk(&crate::cli::definition(), &mut found);
        assert!(found >= 10, "{found}");
    }
}
