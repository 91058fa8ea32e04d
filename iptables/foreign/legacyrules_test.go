package foreign

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// legacyEntry returns an IPv4 entry with a target: its name, and what follows its head.
func legacyEntry(name string, info []byte) []byte {
	f := legacyFamilies()[0]
	entry := make([]byte, f.size+targetHeadSize+len(info))
	binary.NativeEndian.PutUint16(entry[f.nextOffset-2:], uint16(f.size))
	binary.NativeEndian.PutUint16(entry[f.nextOffset:], uint16(len(entry)))
	binary.NativeEndian.PutUint16(entry[f.size:], uint16(targetHeadSize+len(info)))
	copy(entry[f.size+legacyNamesFrom:], name)
	copy(entry[f.size+targetHeadSize:], info)
	return entry
}

// legacyVerdict returns an entry with a verdict, or a jump.
func legacyVerdict(code int32) []byte { return legacyEntry("", native32(uint32(code), 0)) }

// legacyAccept is the verdict ACCEPT of a standard target.
const legacyAccept = -2

// legacyOf returns a table whose built-in chain at PREROUTING begins at 0 and has its policy at end.
func legacyOf(end int, entries ...[]byte) legacyTable {
	info := make([]byte, infoSize)
	binary.NativeEndian.PutUint32(info[underflowsOffset:], uint32(end))
	return legacyTable{legacyFamily: legacyFamilies()[0], name: "mangle", info: info, entries: slices.Concat(entries...)}
}

func TestLegacyRules_hostileTable_isBounded(t *testing.T) {
	size := int32(len(legacyVerdict(0)))
	var circle, suffixes [][]byte
	for i := range int32(3000) {
		circle = append(circle, legacyVerdict((i+1)%3000*size))
		suffixes = append(suffixes, legacyVerdict((i*7919)%3000*size))
	}
	var many [][]byte
	for range 20_000 {
		many = append(many, legacyEntry("LOG", nil))
	}
	cut := legacyVerdict(legacyDrop)
	for name, c := range map[string]struct {
		table legacyTable
		want  string
	}{
		"a jump to itself":           {legacyOf(1<<20, legacyVerdict(0)), errNoEnd.Error()},
		"a circle":                   {legacyOf(0, circle...), ""},
		"a circle in one chain":      {legacyOf(int(2999*size), circle...), ""},
		"jumps into middles":         {legacyOf(int(2999*size), suffixes...), ""},
		"a jump behind the end":      {legacyOf(int(size), legacyVerdict(1<<30), legacyVerdict(0)), ""},
		"more rules than are read":   {legacyOf(len(slices.Concat(many...)), many...), errTooMany.Error()},
		"a drop":                     {legacyOf(int(size), legacyVerdict(legacyDrop), legacyVerdict(legacyAccept)), "drops"},
		"a drop behind an accept":    {legacyOf(int(2*size), legacyVerdict(legacyAccept), legacyVerdict(legacyDrop)), ""},
		"the policy":                 {legacyOf(0, legacyVerdict(legacyDrop)), ""},
		"a drop in a chain":          {legacyOf(int(size), legacyVerdict(2*size), legacyVerdict(legacyAccept), legacyVerdict(legacyDrop)), "drops"},
		"an entry that is cut":       {legacyOf(len(cut)-1, cut[:len(cut)-1]), ""},
		"a target that is cut":       {legacyOf(len(cut), legacyEntry("", nil)), errNoEnd.Error()},
		"a target without a verdict": {legacyOf(len(legacyEntry("", nil)), legacyEntry("", nil)), "is not understood: a verdict"},
		"a new target":               {legacyOf(len(legacyEntry("TELEPORT", nil)), legacyEntry("TELEPORT", nil)), "is not understood: target TELEPORT"},
	} {
		start := time.Now()
		got := c.table.rulesOf(nowhere(), nil).does(hookPrerouting)
		if took := time.Since(start); got != c.want || took > time.Second {
			t.Errorf("%s: %q after %s, want %q", name, got, took, c.want)
		}
	}
}

func TestLegacyRules_byHeadOfEntry(t *testing.T) {
	for name, c := range map[string]struct {
		change func(entry []byte)
		want   string
	}{
		"any packet":          {func([]byte) {}, "drops"},
		"UDP":                 {func(e []byte) { e[80] = unix.IPPROTO_UDP }, ""},
		"not UDP":             {func(e []byte) { e[80], e[83] = unix.IPPROTO_UDP, invertProtocol }, "drops"},
		"not TCP":             {func(e []byte) { e[80], e[83] = unix.IPPROTO_TCP, invertProtocol }, ""},
		"another destination": {func(e []byte) { copy(e[4:], []byte{10, 88, 0, 0}); copy(e[12:], []byte{255, 255, 0, 0}) }, ""},
		"not that destination": {func(e []byte) {
			copy(e[4:], []byte{10, 88, 0, 0})
			copy(e[12:], []byte{255, 255, 0, 0})
			e[83] = invertDestIP
		}, "drops"},
		"the pod's destination": {func(e []byte) { copy(e[4:], []byte{10, 244, 1, 0}); copy(e[12:], []byte{255, 255, 255, 0}) }, "drops"},
		"another source":        {func(e []byte) { copy(e[0:], []byte{10, 88, 0, 0}); copy(e[8:], []byte{255, 255, 0, 0}) }, "drops"},
		"no such device":        {func(e []byte) { copy(e[16:], "wg0"); copy(e[48:], "\xff\xff\xff\xff") }, ""},
		"not that device":       {func(e []byte) { copy(e[16:], "wg0"); copy(e[48:], "\xff\xff\xff\xff"); e[83] = invertIn }, "drops"},
		"a device":              {func(e []byte) { copy(e[16:], "eth"); copy(e[48:], "\xff\xff\xff") }, "drops"},
	} {
		entry := legacyVerdict(legacyDrop)
		c.change(entry)
		if got := legacyOf(len(entry), entry).rulesOf(nowhere(), nil).does(hookPrerouting); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
