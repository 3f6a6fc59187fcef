// A chapter's bets are played in the page, by the script that plays them in a notebook.

import { play } from "./game.js";

play();
