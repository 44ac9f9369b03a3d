/*
 * Lets User-Mode Linux run on processors whose extended register state is larger than the buffer
 * that it was compiled with (the AMX tiles make it 11 KiB; Linux 6.1's UML knows 2.6 KiB).
 *
 * UML saves and restores the registers of its guest's processes with ptrace. The host answers a
 * short PTRACE_GETREGSET with the front of the state, but it refuses a short PTRACE_SETREGSET, on
 * which UML kills the guest's init. Preloaded into UML, this completes the short state with what
 * the process has now; the guest never uses the registers that live beyond UML's buffer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>

/* As in <linux/ptrace.h> and <linux/elf.h>; <sys/ptrace.h> would declare ptrace as variadic. */
#define PTRACE_GETREGSET 0x4204L
#define PTRACE_SETREGSET 0x4205L
#define NT_X86_XSTATE 0x202L

/* Static, since UML's kernel stacks are small. Only one thread of UML ever calls ptrace. */
static unsigned char state[1 << 16];

long ptrace(long request, long pid, void *address, void *data)
{
	static long (*next_ptrace)(long, long, void *, void *);

	if (!next_ptrace)
		next_ptrace = dlsym(RTLD_NEXT, "ptrace");
	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
		const struct iovec *given = data;
		struct iovec whole = { state, sizeof(state) };

		if (next_ptrace(PTRACE_GETREGSET, pid, address, &whole) < 0)
			return -1;
		if (given->iov_len < whole.iov_len) {
			memcpy(state, given->iov_base, given->iov_len);
			return next_ptrace(request, pid, address, &whole);
		}
	}
	return next_ptrace(request, pid, address, data);
}
