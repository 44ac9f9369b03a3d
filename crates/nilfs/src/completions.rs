//! Completions for shells: small scripts that ask this program what fits.
//!
//! So they cannot be older than the program, know the words after `-o`, and leave out what is
//! hidden.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::{EnvCompleter, Fish, Zsh};

use crate::cli::Cli;

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
    local IFS=$'\013' words=() piece nth glued=
    for ((nth = 0; nth <= COMP_CWORD; nth++)); do
        piece=${COMP_WORDS[nth]}
        if ((nth > 0)) && [[ $glued || $piece == [=:]* ]]; then
            words[${#words[@]} - 1]+=$piece
        else
            words+=("$piece")
        fi
        if [[ $piece == *[=:] ]]; then glued=1; else glued=; fi
    done
    local last=$((${#words[@]} - 1))
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
