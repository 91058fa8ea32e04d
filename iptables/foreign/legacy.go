package foreign

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

const (
	// maxTable bounds a legacy table that is read: a thousand times what any project writes. A bigger table is not looked into.
	maxTable = 4 << 20
	// namesLimit bounds what is read of the list of tables.
	namesLimit = 4 << 10
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
}

// findLegacy looks into the x_tables tables that exist. Asking for one that does not exist would make it.
func findLegacy() *podnet.ProgrammedByOthersError {
	for _, f := range []legacyFamily{
		{"ip_tables_names", unix.AF_INET, unix.SOL_IP, "ip"},
		{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, "ip6"},
	} {
		for _, table := range f.tables() {
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

// tables returns the tables of the calling thread's namespace that a project may write to. Without the kernel module there is no such
// file, and no table.
func (f legacyFamily) tables() (out []string) {
	file, err := os.Open("/proc/thread-self/net/" + f.names)
	if err != nil {
		return nil
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, namesLimit))
	if err != nil {
		return nil
	}
	names := strings.Fields(string(data))
	return slices.DeleteFunc([]string{"nat", "mangle"}, func(name string) bool { return !slices.Contains(names, name) })
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
