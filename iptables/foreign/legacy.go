package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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
	getInfo       = 64 // IPT_SO_GET_INFO
	getEntries    = 65 // IPT_SO_GET_ENTRIES
	tableNameSize = 32 // XT_TABLE_MAXNAMELEN
	infoSize      = 84 // struct ipt_getinfo, of which the last four bytes are the size of the entries
	// hookEntriesOffset is where the offsets of the built-in chains are in struct ipt_getinfo.
	hookEntriesOffset = 36
	entriesHeadSize   = 40 // struct ipt_get_entries, in front of the entries
	targetHeadSize    = 32 // struct xt_entry_target, in front of a chain's name in its first entry
	standardSize      = 40 // struct xt_standard_target, which jumps
	errorSize         = 64 // struct xt_error_target, padded
)

// legacyFamily is one family of x_tables.
type legacyFamily struct {
	names         string
	domain, level int
	family        string
	layout        layout
}

// layout is where the fields of an entry are (struct ipt_entry and struct ip6t_entry).
type layout struct{ protocol, protocolFlag, inverted, targetOffset, nextOffset, counters, size int }

func legacyFamilies() []legacyFamily {
	return []legacyFamily{
		{"ip_tables_names", unix.AF_INET, unix.SOL_IP, "ip", layout{protocol: 80, inverted: 83, targetOffset: 88, nextOffset: 90, counters: 96, size: 112}},
		{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, "ip6", layout{protocol: 128, protocolFlag: 131, inverted: 132, targetOffset: 140, nextOffset: 142, counters: 152, size: 168}},
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
					return &podnet.ProgrammedByOthersError{Owner: c.owner, Found: "chain " + c.name + " in the legacy table " + f.family + " " + table}
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

// protocol returns the protocol that the rule is for, or 0 for any and for all but one. IPv6 has a flag without which the kernel does not
// look at the protocol.
func (e entry) protocol() uint32 {
	const invertedProtocol, hasProtocol = 0x40, 0x01
	if e.data[e.inverted]&invertedProtocol != 0 || e.protocolFlag > 0 && e.data[e.protocolFlag]&hasProtocol == 0 {
		return 0
	}
	return uint32(binary.NativeEndian.Uint16(e.data[e.layout.protocol:]))
}

// unconditional reports whether the rule matches every packet: it has no match, and nothing in front of the target's offset but zeros.
func (e entry) unconditional() bool {
	for _, b := range e.data[:e.inverted+1] {
		if b != 0 {
			return false
		}
	}
	return int(binary.NativeEndian.Uint16(e.data[e.targetOffset:])) == e.size
}

// target returns the name of a rule's target, which is empty for a verdict or jump, and its data.
func (e entry) target() (name string, info []byte) {
	offset := int(binary.NativeEndian.Uint16(e.data[e.targetOffset:]))
	if offset+targetHeadSize > len(e.data) {
		return "?", nil
	}
	head := e.data[offset : offset+targetHeadSize]
	text, _, _ := strings.Cut(string(head[2:targetHeadSize-1]), "\x00")
	return text, e.data[offset+targetHeadSize:]
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

// legacyTable is a table as the kernel holds it.
type legacyTable struct {
	legacyFamily
	entries []byte
	hooks   [5]uint32      // where the built-in chains begin
	names   map[int]string // of other chains, by where they begin
}

// errTable means that a table cannot be read because of what somebody has written into it.
var errTable = errors.New("it is too large to be read, or changes all the time")

// read returns a table.
func (f legacyFamily) read(table string) (*legacyTable, error) {
	entries, info, err := f.content(table)
	if err != nil {
		return nil, err
	}
	t := &legacyTable{legacyFamily: f, entries: entries, names: map[int]string{}}
	for i := range t.hooks {
		t.hooks[i] = binary.NativeEndian.Uint32(info[hookEntriesOffset+4*i:])
	}
	at := 0
	for e := range f.each(t.entries) {
		at += len(e.data)
		if target, data := e.target(); target == "ERROR" {
			t.names[at], _, _ = strings.Cut(string(data), "\x00")
		}
	}
	return t, nil
}

// entries returns a table's entries, or nil if they cannot be read.
func (f legacyFamily) entries(table string) []byte {
	entries, _, err := f.content(table)
	if err != nil {
		return nil
	}
	return entries
}

// content returns a table's entries, and a struct ipt_getinfo.
func (f legacyFamily) content(table string) (entries, info []byte, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing that could be lost
	for range attempts {
		info := make([]byte, infoSize)
		copy(info[:tableNameSize-1], table)
		if err := getsockopt(fd, f.level, getInfo, info); err != nil {
			return nil, nil, fmt.Errorf("read legacy table: %w", err)
		}
		size := binary.NativeEndian.Uint32(info[infoSize-4:])
		if size > maxTable {
			return nil, nil, errTable
		}
		answer := make([]byte, entriesHeadSize+int(size))
		copy(answer[:tableNameSize-1], table)
		binary.NativeEndian.PutUint32(answer[tableNameSize:], size)
		err := getsockopt(fd, f.level, getEntries, answer)
		if err == nil {
			return answer[entriesHeadSize:], info, nil
		}
		if !errors.Is(err, unix.EAGAIN) { // which says that the size has changed
			return nil, nil, fmt.Errorf("read legacy table: %w", err)
		}
	}
	return nil, nil, errTable
}

func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value)) //nolint:gosec // at most maxTable
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // the kernel fills the slice
	if errno != 0 {
		return errno
	}
	return nil
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
