package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

const (
	// maxTable bounds a legacy table that is read: a thousand times what any project writes. A bigger table is not looked into.
	maxTable = 4 << 20
	// attempts is how often a table is read again that changes at the same time.
	attempts = 3
)

// What x_tables answers by getsockopt (linux/netfilter_ipv4/ip_tables.h); the numbers of IPv6 are the same.
const (
	getInfo       = 64 // IPT_SO_GET_INFO
	getEntries    = 65 // IPT_SO_GET_ENTRIES
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	infoSize      = 84 // struct ipt_getinfo, of which the last four bytes are the size of the entries
	// In struct ipt_getinfo, the offsets of where built-in chains begin, and of their policies.
	hookEntriesOffset = 36
	underflowsOffset  = 56
	entriesHeadSize   = 40 // struct ipt_get_entries, in front of the entries
	targetHeadSize    = 32 // struct xt_entry_target, in front of a chain's name in its first entry
	legacyDrop        = -1 // the verdict of a standard target
)

// legacyFamily is one family of x_tables, the places of the fields of an entry (struct ipt_entry and struct ip6t_entry), and its flags.
type legacyFamily struct {
	family
	names                             string
	domain, level                     int
	address                           int // its size
	flags, nextOffset, counters, size int
	gotos, protocols                  byte // the flag of a goto, and the one without which the protocol does not count
}

func legacyFamilies() []legacyFamily {
	return []legacyFamily{
		{
			family: family{unix.NFPROTO_IPV4, "ip"}, names: "ip_tables_names", domain: unix.AF_INET, level: unix.SOL_IP,
			address: 4, flags: 82, nextOffset: 90, counters: 96, size: 112, gotos: entryGoto,
		},
		{
			family: family{unix.NFPROTO_IPV6, "ip6"}, names: "ip6_tables_names", domain: unix.AF_INET6, level: unix.SOL_IPV6,
			address: 16, flags: 131, nextOffset: 142, counters: 152, size: 168, gotos: entryGoto6, protocols: entryProto6,
		},
	}
}

// findLegacy looks into existing tables of x_tables only: a question about a missing table would make it.
func findLegacy() *podnet.ProgrammedByOthersError {
	for t, err := range legacyTables() {
		if err != nil {
			continue
		}
		reached := sync.OnceValue(t.reached)
		for _, c := range chains() {
			if c.table == t.name && reached()[c.name] {
				return &podnet.ProgrammedByOthersError{Owner: c.owner, Found: "chain " + c.name + " in the legacy table " + t.place()}
			}
		}
	}
	return nil
}

// LegacyHolds reports whether a table of x_tables in the calling thread's namespace may have a chain with one of the names. It starts no
// process, and makes no table.
func LegacyHolds(names []string) bool {
	for t, err := range legacyTables() {
		if err != nil || slices.ContainsFunc(names, func(name string) bool { return bytes.Contains(t.entries, append([]byte(name), 0)) }) {
			return true
		}
	}
	return false
}

// legacyTable is a table as the kernel returns it: a struct ipt_getinfo, and the entries, which are rules and beginnings of chains.
type legacyTable struct {
	legacyFamily
	name          string
	info, entries []byte
}

// place returns the table's family and name.
func (t legacyTable) place() string { return t.family.name + " " + t.name }

// legacyTables yields the tables of the calling thread's namespace, or why one cannot be read. Without the kernel module there is none.
func legacyTables() iter.Seq2[legacyTable, error] {
	return func(yield func(legacyTable, error) bool) {
		for _, f := range legacyFamilies() {
			names, _ := os.ReadFile("/proc/thread-self/net/" + f.names)
			for name := range strings.FieldsSeq(string(names)) {
				t, err := f.read(name)
				t.legacyFamily, t.name = f, name
				if !yield(t, err) {
					return
				}
			}
		}
	}
}

// each yields the entries of a table from an offset on, as far as they are whole, and the offset behind each.
func (t legacyTable) each(offset uint32) iter.Seq2[uint32, []byte] {
	return func(yield func(uint32, []byte) bool) {
		for left := after(t.entries, int(offset), len(t.entries)); len(left) >= t.size; {
			size := u16(left, t.nextOffset)
			offset += uint32(size)
			if int(size) < t.size || int(size) > len(left) || !yield(offset, left[:size]) {
				return
			}
			left = left[size:]
		}
	}
}

// builtIn returns where the built-in chain at a hook begins, and where its policy is. ok is false if there is no such chain.
func (t legacyTable) builtIn(hook uint32) (begin, end uint32, ok bool) {
	const noChain = math.MaxUint32
	if len(t.info) < infoSize {
		return 0, 0, false
	}
	begin, end = u32(t.info, int(hookEntriesOffset+4*hook)), u32(t.info, int(underflowsOffset+4*hook))
	return begin, end, begin != noChain
}

// dropsByPolicy reports whether the policy of the built-in chain at a hook drops.
func (t legacyTable) dropsByPolicy(hook uint32) bool {
	_, end, ok := t.builtIn(hook)
	if !ok || end > uint32(len(t.entries)) {
		return false
	}
	policy := t.entries[end:]
	verdict := t.size + targetHeadSize
	return len(policy) >= verdict+4 && int32(u32(policy, verdict)) == legacyDrop
}

// errTable means that the content of a table makes it unreadable.
var errTable = errors.New("is too large to be read, or changes all the time")

// read returns a table of the calling thread's namespace.
func (f legacyFamily) read(table string) (t legacyTable, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return t, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing that could be lost
	for range attempts {
		info := make([]byte, infoSize)
		copy(info[:tableNameSize-1], table)
		if err := getsockopt(fd, f.level, getInfo, info); err != nil {
			return t, fmt.Errorf("read legacy table: %w", err)
		}
		size := binary.NativeEndian.Uint32(info[infoSize-4:])
		if size > maxTable {
			return t, errTable
		}
		answer := make([]byte, entriesHeadSize+int(size))
		copy(answer[:tableNameSize-1], table)
		binary.NativeEndian.PutUint32(answer[tableNameSize:], size)
		err := getsockopt(fd, f.level, getEntries, answer)
		if err == nil {
			return legacyTable{info: info, entries: answer[entriesHeadSize:]}, nil
		}
		if !errors.Is(err, unix.EAGAIN) { // which says that the size has changed
			return t, fmt.Errorf("read legacy table: %w", err)
		}
	}
	return t, errTable
}

func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // the kernel fills the slice
	if errno != 0 {
		return errno
	}
	return nil
}
