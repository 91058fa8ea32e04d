package foreign

import (
	"bytes"
	"encoding/binary"
	"iter"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

const (
	// maxTable bounds a legacy table that is read: a thousand times what any project writes. A bigger table is not looked into.
	maxTable = 4 << 20
	// namesLimit bounds what is read of the list of tables.
	namesLimit = 256
	// attempts is how often a table is read again that changes at the same time.
	attempts = 3
)

// What x_tables answers by getsockopt (linux/netfilter_ipv4/ip_tables.h); the numbers of IPv6 are the same.
const (
	getInfo         = 64 // IPT_SO_GET_INFO
	getEntries      = 65 // IPT_SO_GET_ENTRIES
	tableNameSize   = 32 // XT_TABLE_MAXNAMELEN
	infoSize        = 84 // struct ipt_getinfo, of which the last four bytes are the size of the entries
	entriesHeadSize = 40 // struct ipt_get_entries, in front of the entries
	targetHeadSize  = 32 // struct xt_entry_target, in front of a chain's name in its first entry
	standardSize    = 40 // struct xt_standard_target, which jumps
	errorSize       = 64 // struct xt_error_target, padded
)

// legacyFamily is one family of x_tables.
type legacyFamily struct {
	names         string
	domain, level int
	place         string
	layout        layout
}

// layout is where the fields of an entry are (struct ipt_entry and struct ip6t_entry).
type layout struct{ targetOffset, nextOffset, counters, size int }

func legacyFamilies() []legacyFamily {
	return []legacyFamily{
		{"ip_tables_names", unix.AF_INET, unix.SOL_IP, "ip", layout{targetOffset: 88, nextOffset: 90, counters: 96, size: 112}},
		{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, "ip6", layout{targetOffset: 140, nextOffset: 142, counters: 152, size: 168}},
	}
}

// findLegacy looks into the x_tables tables that exist. Asking for one that does not exist would make it.
func findLegacy() *podnet.ProgrammedByOthersError {
	for _, f := range legacyFamilies() {
		for _, table := range f.tables() {
			if table != "nat" && table != "mangle" {
				continue // no project is recognised by another
			}
			entries := f.entries(table)
			for _, c := range chains() {
				if c.table == table && hasChain(entries, c.name) {
					return &podnet.ProgrammedByOthersError{Owner: c.owner, Found: "chain " + c.name + " in the legacy table " + f.place + " " + table}
				}
			}
		}
	}
	return nil
}

// tables returns the tables of the calling thread's namespace. Without the kernel module there is no such file, and no table.
func (f legacyFamily) tables() []string {
	fd, err := unix.Open("/proc/thread-self/net/"+f.names, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)       //nolint:errcheck // nothing was written that could be lost
	var names [namesLimit]byte // the kernel has five tables
	n, err := unix.Read(fd, names[:])
	if err != nil {
		return nil
	}
	return strings.Fields(string(names[:n]))
}

// entry is one entry of a table: a rule, or the beginning of a chain.
type entry struct {
	layout
	data []byte
}

func (e entry) counters() []byte { return e.data[e.layout.counters:e.size] }

// each yields the entries of a table, as far as they are whole.
func (f legacyFamily) each(entries []byte) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for len(entries) >= f.layout.size {
			next := int(binary.NativeEndian.Uint16(entries[f.layout.nextOffset:]))
			if next < f.layout.size || next > len(entries) || !yield(entry{f.layout, entries[:next]}) {
				return
			}
			entries = entries[next:]
		}
	}
}

// entries returns a table as the kernel holds it, or nil if it cannot be read.
func (f legacyFamily) entries(table string) []byte {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd) //nolint:errcheck // nothing that could be lost
	for range attempts {
		info := make([]byte, infoSize)
		copy(info[:tableNameSize-1], table)
		if !getsockopt(fd, f.level, getInfo, info) {
			return nil
		}
		size := binary.NativeEndian.Uint32(info[infoSize-4:])
		if size > maxTable {
			return nil
		}
		answer := make([]byte, entriesHeadSize+int(size))
		copy(answer[:tableNameSize-1], table)
		binary.NativeEndian.PutUint32(answer[tableNameSize:], size)
		if getsockopt(fd, f.level, getEntries, answer) {
			return answer[entriesHeadSize:]
		}
	}
	return nil
}

func getsockopt(fd, level, option int, value []byte) bool {
	size := uint32(len(value)) //nolint:gosec // at most maxTable
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // the kernel fills the slice
	return errno == 0
}

// hasChain reports whether a table has a chain of that name, and a rule that jumps to it. A chain begins with an entry whose target is
// called ERROR and holds the chain's name. A jump has a target without a name that holds the offset behind that entry.
func hasChain(entries []byte, name string) bool {
	want := append([]byte(name), 0)
	for at := 0; ; {
		i := bytes.Index(entries[at:], want)
		if i < 0 {
			return false
		}
		at += i
		if head := at - targetHeadSize; head >= 0 && bytes.HasPrefix(entries[head+2:], []byte("ERROR\x00")) {
			jump := binary.NativeEndian.AppendUint16(nil, standardSize)
			jump = append(jump, make([]byte, targetHeadSize-2)...)
			jump = binary.NativeEndian.AppendUint32(jump, uint32(head+errorSize)) //nolint:gosec // at most maxTable
			if bytes.Contains(entries, jump) {
				return true
			}
		}
		at += len(want)
	}
}
