// Command runcfit is runc for a machine that cannot give all that a container is to have: it takes out of the container's configuration
// what runc would fail for, and runs runc. containerd takes it out by itself; CRI-O is told to run this.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "runcfit:", err)
		os.Exit(1)
	}
}

// run returns only with an error.
func run(argv []string) error {
	m, err := thisMachine()
	if err != nil {
		return err
	}
	for i, arg := range argv[:len(argv)-1] {
		switch arg {
		case "--bundle", "-b":
			err = rewrite(filepath.Join(argv[i+1], "config.json"), m.fitSpec)
		case "--process", "-p":
			err = rewrite(argv[i+1], m.fitProcess)
		}
		if err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return unix.Exec(runc, append([]string{"runc"}, argv[1:]...), os.Environ())
}

// machine is what this program may do, and so what a container may get.
type machine struct {
	missing  map[string]bool // capabilities
	oomScore int             // a lower one is refused
}

// resource lets a process lower its score.
const resource = "CAP_SYS_RESOURCE"

// thisMachine knows of the one capability that virtual machines are often made without.
func thisMachine() (machine, error) {
	m := machine{missing: map[string]bool{}, oomScore: -1000}
	has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	if err != nil {
		return m, fmt.Errorf("ask for %s: %w", resource, err)
	}
	if has == 1 {
		return m, nil
	}
	m.missing[resource] = true
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return m, err
	}
	m.oomScore, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return m, err
}

// fitSpec also takes out limits of huge pages: nothing here uses any, and on a machine with both versions of cgroups runc does not find them.
func (m machine) fitSpec(spec map[string]any) {
	if process, ok := spec["process"].(map[string]any); ok {
		m.fitProcess(process)
	}
	if linux, ok := spec["linux"].(map[string]any); ok {
		if resources, ok := linux["resources"].(map[string]any); ok {
			delete(resources, "hugepageLimits")
		}
	}
}

func (m machine) fitProcess(process map[string]any) {
	if score, ok := process["oomScoreAdj"].(json.Number); ok {
		if n, err := score.Int64(); err == nil {
			process["oomScoreAdj"] = max(int(n), m.oomScore)
		}
	}
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		if list, ok := set.([]any); ok {
			sets[name] = slices.DeleteFunc(list, func(one any) bool { text, _ := one.(string); return m.missing[text] })
		}
	}
}

// rewrite replaces a file of JSON. A missing one is runc's to complain about.
func rewrite(file string, change func(map[string]any)) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var content map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	change(content)
	if text, err = json.Marshal(content); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
