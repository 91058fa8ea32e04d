package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"istio-pod-network-controller/agent/cli"
)

// program is one of the small programs, with what it prints about its flags.
type program struct{ name, usage string }

// smallPrograms reads what each small program prints for -h.
func smallPrograms(dir string) ([]program, error) {
	if dir == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(errors.New("-usages "+dir+": no file of a program"), err)
	}
	var all []program
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("-usages: %w", err)
		}
		all = append(all, program{name: strings.TrimSuffix(filepath.Base(file), ".txt"), usage: string(text)})
	}
	return all, nil
}

func flagsPage(programs []program) string {
	p := newPage("Flags", "the commands themselves")
	p.text("Every command and its flags, as `--help` has them. The chart sets those of `run`: its README says which value becomes which flag.\n" +
		"[exit-codes.md](exit-codes.md) has the exit codes.")
	all := commands(cli.Commands())
	shared := sharedRows(all)
	p.section("Flags of several commands")
	p.table([]string{"Flag", "Default", "Meaning"}, shared)
	for _, cmd := range all {
		p.section(code(cmd.CommandPath()))
		p.text(sentence(cmd.Short))
		if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
			p.block(cmd.UseLine())
		}
		own, named := splitRows(flagRows(cmd), shared)
		if len(own) > 0 {
			p.table([]string{"Flag", "Default", "Meaning"}, own)
		}
		if len(named) > 0 {
			p.text("As [above](#flags-of-several-commands): " + strings.Join(named, "; ") + ".")
		}
		if inherited(cmd) {
			p.text("And the flags of " + code(cmd.Parent().CommandPath()) + ".")
		}
	}
	for _, small := range programs {
		p.section(code(small.name))
		p.block(small.usage)
	}
	return p.String()
}

func sentence(s string) string { return strings.TrimSuffix(s, ".") + "." }

// commands returns a command and all below it, without cobra's own.
func commands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		all = append(all, commands(sub)...)
	}
	return all
}

// inherited reports whether flags of a command above apply, too.
func inherited(cmd *cobra.Command) bool {
	return cmd.HasParent() && cmd.InheritedFlags().HasAvailableFlags()
}

// flagRows returns a command's own flags, sorted by name.
func flagRows(cmd *cobra.Command) [][]string {
	var rows [][]string
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := code("--" + f.Name)
		if f.Shorthand != "" {
			name = code("-"+f.Shorthand) + ", " + name
		}
		meaning := strings.ReplaceAll(f.Usage, "*", `\*`)
		if f.Deprecated != "" {
			meaning = "deprecated: " + f.Deprecated
		}
		rows = append(rows, []string{name, code(f.DefValue), meaning})
	})
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows
}

// sharedRows returns the rows that several commands have word for word, sorted by name; of a name with several such meanings the most
// frequent one.
func sharedRows(all []*cobra.Command) [][]string {
	count, best := map[string]int{}, map[string][]string{}
	for _, cmd := range all {
		for _, row := range flagRows(cmd) {
			key := strings.Join(row, "\x00")
			if count[key]++; count[key] > max(1, count[strings.Join(best[row[0]], "\x00")]) {
				best[row[0]] = row
			}
		}
	}
	return slices.SortedFunc(maps.Values(best), slices.Compare)
}

// splitRows returns the rows that stand in the command's own section, and the names of its shared flags.
func splitRows(rows, shared [][]string) (own [][]string, named []string) {
	for _, row := range rows {
		if slices.ContainsFunc(shared, func(s []string) bool { return slices.Equal(s, row) }) {
			named = append(named, row[0])
		} else {
			own = append(own, row)
		}
	}
	return own, named
}
