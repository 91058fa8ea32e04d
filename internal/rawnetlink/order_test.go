package rawnetlink_test

import (
	"encoding/binary"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/rawnetlink"
)

func TestNumber32_shortNumber_hasItsOwnBytesOnly(t *testing.T) {
	for _, c := range []struct {
		host rawnetlink.Order
		in   []byte
		want uint32
	}{
		{binary.LittleEndian, nil, 0},
		{binary.LittleEndian, []byte{6}, 6},
		{binary.LittleEndian, []byte{1, 2}, 0x0201},
		{binary.LittleEndian, []byte{1, 2, 3, 4, 5}, 0x04030201},
		{binary.BigEndian, nil, 0},
		{binary.BigEndian, []byte{6}, 6},
		{binary.BigEndian, []byte{1, 2}, 0x0102},
		{binary.BigEndian, []byte{1, 2, 3, 4, 5}, 0x01020304},
	} {
		if got := rawnetlink.Number32(c.host, c.in); got != c.want {
			t.Errorf("%s: % x is %#x, want %#x", c.host, c.in, got, c.want)
		}
	}
}

// The machines of the tests are little-endian, so what holds only there passes every other test.
func TestProduct_numbersForTheKernel_areInItsOrder(t *testing.T) {
	suspect := regexp.MustCompile(`binary\.LittleEndian|/binaryutil"|<<\s*8\s*\|\s*\w+\s*>>\s*8|Uint32\([^)]*\)\[`)
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == "build" || path == "hack" || strings.HasPrefix(path, ".") && path != ".") {
			return fs.SkipDir
		}
		const aHash = "controllers/due.go" // the kernel never sees it
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || path == aHash {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if found := suspect.Find(text); found != nil {
			t.Errorf("%s: %q is right on little-endian machines alone: see Order", path, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
