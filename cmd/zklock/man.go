package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// manCmd is zklock man.
type manCmd struct{}

// Help is what zklock man --help says at length.
func (*manCmd) Help() string {
	return `Prints the manual page, made from the same texts as --help:

    zklock man | man -l -
    zklock man > /usr/local/share/man/man1/zklock.1`
}

// Run is called by kong.
func (*manCmd) Run(app *kong.Kong, std *streams) error {
	var page strings.Builder
	manPage(&page, app.Model)
	_, err := std.out.WriteString(page.String())
	return err
}

// manPage writes the page of the whole program.
func manPage(w io.Writer, app *kong.Application) {
	fmt.Fprintf(w, ".TH ZKLOCK 1 \"\" \"zklock %s\" \"User Commands\"\n", roff(version()))
	fmt.Fprint(w, ".SH NAME\nzklock \\- locks on a ZooKeeper ensemble, from the shell\n.SH SYNOPSIS\n")
	for _, node := range visible(app.Node) {
		fmt.Fprintf(w, ".B zklock %s\n%s\n.br\n", roff(node.Name), roff(strings.TrimSpace(strings.TrimPrefix(node.Summary(), node.Name))))
	}
	fmt.Fprint(w, ".SH DESCRIPTION\n")
	manText(w, app.Help)
	fmt.Fprint(w, ".SH COMMANDS\n")
	for _, node := range visible(app.Node) {
		fmt.Fprintf(w, ".SS zklock %s\n", roff(strings.TrimSpace(node.Summary())))
		manText(w, node.Help)
		manText(w, node.Detail)
		for _, f := range node.Flags {
			if group := f.Group; group == nil || group.Key != "ensemble" {
				manFlag(w, f)
			}
		}
	}
	fmt.Fprint(w, ".SH OPTIONS OF ALL COMMANDS THAT CONNECT\nThey can stand in the environment and in the file with settings, too. A flag goes\nbefore the environment, and that before the file. A variable that is empty counts as not set.\n")
	for _, f := range visible(app.Node)[0].Flags {
		if f.Group != nil && f.Group.Key == "ensemble" {
			manFlag(w, f)
		}
	}
	fmt.Fprint(w, ".SH OTHER OPTIONS\n")
	for _, f := range app.Flags {
		manFlag(w, f)
	}
	fmt.Fprint(w, ".SH FILES\n.I ~/.config/zklock.json\n.br\n.I /etc/zklock.json\n.P\nThe file with settings: a JSON object whose names are those of the flags, as in\n.P\n.nf\n{\"servers\": \"zk1:2181,zk2:2181,zk3:2181\", \"session\\-timeout\": \"20s\"}\n.fi\n")
}

// manFlag writes one flag.
func manFlag(w io.Writer, f *kong.Flag) {
	fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(f.String()), roff(f.Help))
}

// manText writes a text of --help: indented lines and tables as they are, the rest as
// paragraphs.
func manText(w io.Writer, text string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		fmt.Fprint(w, ".P\n")
		if strings.HasPrefix(paragraph, "    ") {
			fmt.Fprintf(w, ".nf\n%s\n.fi\n", roff(paragraph))
		} else {
			fmt.Fprintf(w, "%s\n", roff(paragraph))
		}
	}
}

// roff escapes a text.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(text)
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			b.WriteString(`\&`)
		}
		b.WriteString(line)
	}
	return b.String()
}
