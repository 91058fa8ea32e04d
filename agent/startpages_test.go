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
