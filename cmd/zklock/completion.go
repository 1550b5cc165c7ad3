package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCmd is zklock completion.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is what zklock completion --help says at length.
func (*completionCmd) Help() string {
	return `Prints a script that makes the shell complete commands, flags and their values:

    source <(zklock completion bash)                           # in ~/.bashrc
    source <(zklock completion zsh)                            # in ~/.zshrc, after compinit
    zklock completion fish > ~/.config/fish/completions/zklock.fish`
}

// Run is called by kong.
func (c *completionCmd) Run(app *kong.Kong, std *streams) error {
	write := map[string]func(io.Writer, *kong.Application){"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	var script strings.Builder
	write(&script, app.Model)
	_, err := std.out.WriteString(script.String())
	return err
}

// visible lists the subcommands of a node.
func visible(node *kong.Node) []*kong.Node {
	var all []*kong.Node
	for _, child := range node.Children {
		if !child.Hidden {
			all = append(all, child)
		}
	}
	return all
}

// flagsOf lists a command's flags, those of the program included.
func flagsOf(node *kong.Node) []*kong.Flag {
	var all []*kong.Flag
	for _, group := range node.AllFlags(true) {
		all = append(all, group...)
	}
	return all
}

// spellings are the ways to write a flag.
func spellings(f *kong.Flag) []string {
	all := []string{"--" + f.Name}
	if f.Short != 0 {
		all = append(all, "-"+string(f.Short))
	}
	if f.Tag.Negatable != "" {
		all = append(all, "--no-"+f.Name)
	}
	return all
}

// takesFile says whether a flag's value is the name of a file.
func takesFile(f *kong.Flag) bool { return f.PlaceHolder == "FILE" }

// takesCommand says whether a subcommand's arguments are a command of the user's.
func takesCommand(node *kong.Node) bool {
	return len(node.Positional) > 0 && node.Positional[0].Name == "command"
}

// choices are the values that a flag or an argument can have.
func choices(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

// argumentChoices are those of a command's first argument.
func argumentChoices(node *kong.Node) []string {
	if len(node.Positional) == 0 {
		return nil
	}
	return choices(node.Positional[0])
}

func bashCompletion(w io.Writer, app *kong.Application) {
	fmt.Fprint(w, `_zklock() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word i
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [ "$word" = -- ]; then # the command's own words
			COMPREPLY=($(compgen -A file -A command -- "$cur"))
			return
		fi
		case $word in
`)
	var names []string
	for _, node := range visible(app.Node) {
		names = append(names, node.Name)
	}
	fmt.Fprintf(w, "\t\t%s) [ -n \"$command\" ] || command=$word ;;\n\t\tesac\n\tdone\n\tcase $command:$prev in\n", strings.Join(names, "|"))
	for _, node := range append(visible(app.Node), app.Node) {
		command := node.Name
		if node == app.Node {
			command = ""
		}
		for _, f := range flagsOf(node) {
			switch {
			case takesFile(f):
				fmt.Fprintf(w, "\t%s:--%s) COMPREPLY=($(compgen -A file -- \"$cur\")); return ;;\n", command, f.Name)
			case f.Enum != "":
				fmt.Fprintf(w, "\t%s:--%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", command, f.Name, strings.Join(f.EnumSlice(), " "))
			case !f.IsBool():
				fmt.Fprintf(w, "\t%s:--%s) return ;;\n", command, f.Name)
			}
		}
	}
	fmt.Fprint(w, "\tesac\n\tcase $command in\n")
	for _, node := range append(visible(app.Node), app.Node) {
		var words []string
		for _, f := range flagsOf(node) {
			words = append(words, spellings(f)...)
		}
		command := node.Name
		if node == app.Node {
			command, words = "''", append(words, names...)
		}
		words = append(words, argumentChoices(node)...)
		fmt.Fprintf(w, "\t%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")) ;;\n", command, strings.Join(words, " "))
	}
	fmt.Fprint(w, "\tesac\n}\ncomplete -F _zklock zklock\n")
}

func zshCompletion(w io.Writer, app *kong.Application) {
	// Not commands: that is the shell's own table, which the names of programs come from.
	fmt.Fprint(w, "#compdef zklock\n_zklock() {\n\tlocal -a subcommands\n\tsubcommands=(\n")
	for _, node := range visible(app.Node) {
		fmt.Fprintf(w, "\t\t%s\n", singleQuoted(node.Name+":"+node.Help))
	}
	fmt.Fprint(w, "\t)\n\tlocal context state line\n\t_arguments -C \\\n")
	for _, f := range flagsOf(app.Node) {
		fmt.Fprintf(w, "\t\t%s \\\n", zshFlag(f))
	}
	fmt.Fprint(w, "\t\t'1:command:->command' '*::argument:->arguments'\n\tcase $state in\n\tcommand) _describe command subcommands ;;\n\targuments)\n\t\tcase $line[1] in\n")
	for _, node := range visible(app.Node) {
		fmt.Fprintf(w, "\t\t%s)\n", node.Name)
		if takesCommand(node) {
			// The command's own words: _arguments counts them from before the --.
			fmt.Fprint(w, "\t\t\tlocal -i end=${words[(i)--]}\n\t\t\tif (( end < CURRENT )); then\n")
			fmt.Fprint(w, "\t\t\t\tshift end words\n\t\t\t\t(( CURRENT -= end ))\n\t\t\t\t_normal\n\t\t\t\treturn\n\t\t\tfi\n")
		}
		fmt.Fprint(w, "\t\t\t_arguments")
		for _, f := range flagsOf(node) {
			fmt.Fprintf(w, " \\\n\t\t\t\t%s", zshFlag(f))
		}
		switch {
		case len(node.Positional) == 0:
		case argumentChoices(node) != nil:
			fmt.Fprintf(w, " \\\n\t\t\t\t'1:%s:(%s)'", node.Positional[0].Name, strings.Join(argumentChoices(node), " "))
		case takesCommand(node):
			fmt.Fprint(w, " \\\n\t\t\t\t'*::command: _normal'")
		default:
			fmt.Fprintf(w, " \\\n\t\t\t\t'1:%s: '", node.Positional[0].Name)
		}
		fmt.Fprint(w, "\n\t\t\t;;\n")
	}
	fmt.Fprint(w, "\t\tesac\n\t\t;;\n\tesac\n}\ncompdef _zklock zklock\n")
}

// zshFlag describes a flag as _arguments takes it.
func zshFlag(f *kong.Flag) string {
	help := strings.NewReplacer("[", "(", "]", ")", ":", "\\:").Replace(f.Help)
	value := ""
	switch {
	case f.IsBool():
	case takesFile(f):
		value = ":file:_files"
	case f.Enum != "":
		value = ":" + f.Name + ":(" + strings.Join(f.EnumSlice(), " ") + ")"
	default:
		value = ":" + f.Name + ": "
	}
	var specs []string
	for _, s := range spellings(f) {
		if value != "" && strings.HasPrefix(s, "--") {
			s += "="
		}
		specs = append(specs, singleQuoted(s+"["+help+"]"+value))
	}
	return strings.Join(specs, " ")
}

func fishCompletion(w io.Writer, app *kong.Application) {
	// Fish takes the first word for the program, behind which the command is. Here it is
	// behind --, or behind the subcommand and its flags.
	fmt.Fprint(w, `function __zklock_command
	set -l words (commandline -opc) (commandline -ct)
	if set -l end (contains -i -- -- $words)
		set -e words[1..$end]
		complete -C "$words"
	else
		__fish_complete_subcommand --fcs-skip=2 -- $argv
	end # if
end
complete -c zklock -f
`)
	for _, node := range visible(app.Node) {
		fmt.Fprintf(w, "complete -c zklock -n __fish_use_subcommand -a %s -d %s\n", node.Name, singleQuoted(node.Help))
	}
	for _, f := range flagsOf(app.Node) {
		fishFlag(w, "__fish_use_subcommand", f)
	}
	for _, node := range visible(app.Node) {
		when := singleQuoted("__fish_seen_subcommand_from " + node.Name)
		for _, f := range flagsOf(node) {
			fishFlag(w, when, f)
		}
		if c := argumentChoices(node); c != nil {
			fmt.Fprintf(w, "complete -c zklock -n %s -a %s\n", when, singleQuoted(strings.Join(c, " ")))
		}
		if takesCommand(node) {
			fmt.Fprintf(w, "complete -c zklock -n %s -a '(__zklock_command%s)'\n", when, withValues(node))
		}
	}
}

// withValues are the spellings of the flags whose value may be a word of its own.
func withValues(node *kong.Node) string {
	var b strings.Builder
	for _, f := range flagsOf(node) {
		if !f.IsBool() {
			for _, s := range spellings(f) {
				b.WriteString(" " + s)
			}
		}
	}
	return b.String()
}

// fishFlag prints a line for a flag, and one for its negation.
func fishFlag(w io.Writer, when string, f *kong.Flag) {
	line := "complete -c zklock -n " + when + " -l " + f.Name
	if f.Short != 0 {
		line += " -s " + string(f.Short)
	}
	switch {
	case f.IsBool():
	case takesFile(f):
		line += " -r -F"
	case f.Enum != "":
		line += " -x -a " + singleQuoted(strings.Join(f.EnumSlice(), " "))
	default:
		line += " -x"
	}
	fmt.Fprintf(w, "%s -d %s\n", line, singleQuoted(f.Help))
	if f.Tag.Negatable != "" {
		fmt.Fprintf(w, "complete -c zklock -n %s -l no-%s -d %s\n", when, f.Name, singleQuoted("The opposite of --"+f.Name))
	}
}

// singleQuoted is a text as one word of a shell.
func singleQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
