package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// mappedFiles is how much of files this process has mapped and in memory, in KiB. A program may lie on a tmpfs.
func mappedFiles(t *testing.T) (sum int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"RssFile:", "RssShmem:"} {
		kib := 0
		_, after, ok := strings.Cut(string(text), name)
		if _, err := fmt.Sscan(after, &kib); !ok || err != nil {
			t.Fatalf("no %s in %s: %v", name, text, err)
		}
		sum += kib
	}
	return sum
}

func TestTheProgramsPagesAreGivenBack(t *testing.T) {
	before := mappedFiles(t)
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mappedFiles(t); after > before/2 {
		t.Errorf("%d KiB of the program are in memory, before %d KiB", after, before)
	}
}

func TestALineOfTheMemoryMapIsRead(t *testing.T) {
	for line, want := range map[string]mapping{
		"00400000-0452f000 r-xp 00000000 08:01 1234   /usr/local/bin/agent":           {start: 0x400000, end: 0x452f000, file: "/usr/local/bin/agent"},
		"0452f000-04530000 rw-p 00000000 08:01 1234   /usr/local/bin/agent (deleted)": {start: 0x452f000, end: 0x4530000, writable: true, file: "/usr/local/bin/agent (deleted)"},
	} {
		if got, ok := mappingOf(line); !ok || got != want {
			t.Errorf("%s became %+v", line, got)
		}
	}
	for _, line := range []string{"", "c000000000-c000400000 rw-p 00000000 00:00 0", "x-y r-xp 00000000 08:01 1 /bin/agent", "1-2 r 0 0 0 /bin/agent"} {
		if got, ok := mappingOf(line); ok {
			t.Errorf("%q became %+v", line, got)
		}
	}
}
